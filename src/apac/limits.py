"""The limits of what files and arguments may ask for, with the reason for each.

Runs, networks and images come from other people. A number in a file is compared with its limit before any memory is
allocated or time is spent by it, so that refusing a file is cheap. The library and the server share these limits.
"""

from __future__ import annotations

# Image files

PIXELS = 40_000_000  # of a file; more than cameras take, and 160 MB as RGBA. Callers may raise it.
UPLOADED_PIXELS = 25_000_000  # of a file that a server decodes, several of them at a time
PICTURE_SIDE = 200_000  # pixels of a row or column of a file; decoders hold some rows beside the picture
DECODER_COPIES = {"WEBP": 2, "AVIF": 2}  # these decoders hold twice the memory of others: half the pixels are allowed
FILE_BYTES = 4.0  # of a file, for each pixel that is allowed, at least PIXELS; as many as an uncompressed RGBA picture
SLOW_BYTES = {"AVIF": 0.25, "JPEG": 1.0}  # likewise; AVIF takes 150 ms for a MB, JPEG with several scans 45 ms
TILE_BYTES = 4.0  # likewise, of a decoded tile or strip of TIFF, which is in memory beside the picture: one of all RGBA
TIFF_BYTES = 8.5  # likewise, of the file, which libtiff maps, of the picture and of a tile or strip together
HEADER_BYTES = 48 << 20  # that are read before the size is known; of WebP and AVIF the whole file, 2.5 bytes per pixel
EXIF_BYTES = 4 << 20  # that Pillow copies from all tags; cameras write at most 64 KB, and a preview
READS = 250_000  # of a file: Pillow reads small pieces one by one, in a microsecond each
PYTHON_PIXELS = 500_000  # that Pillow decodes in Python: of a PNM file as text, or of a run-length encoded BMP file
AVIF_TABLE_BYTES = 64 << 10  # of the tables of items; libavif takes time by the square of their number
AV1_UNITS = 1_000  # of an AVIF stream; a still picture has three or four, and more if it has layers or tiles
AVIF_LAYERS = 4  # times the allowed pixels, in all: colors and transparency, each perhaps with a preview
SCANS = 32  # of a progressive JPEG file, each of which is a pass over the picture; cameras and editors write 10

# Data sets that are downloaded

DOWNLOAD_BYTES = 256 << 20  # of a file; CIFAR-10 has 170 MB
DATA_FILE_BYTES = 64 << 20  # of a file in an archive, decompressed; the training images of MNIST have 47 MB

# Runs and other JSON

JSON_BYTES = 16 << 20  # a run of the paper's 15,000 epochs has 3 MB
JSON_VALUES = 300_000  # numbers, strings, lists and objects; each takes up to 250 bytes, and 3 microseconds
JSON_DEPTH = 64  # deeper than any composition of deformations and transforms, far from Python's recursion limit
IMAGE_JSON_BYTES, IMAGE_JSON_VALUES = 256, 3  # more for each image of a cache: a label, a digest, whether it was read
TENSOR_HEADER_BYTES = 8 << 20  # of a safetensors file, which has the history of a training in a checkpoint
TENSORS = 20_000  # of such a file, each read in 40 microseconds; a checkpoint has four of each parameter
CLASSES = 100_000  # four times ImageNet-21k
CLASS_NAME = 1_000  # characters; a name is a column of a table and a part of every row, not a text
IMAGE_VALUES = 1 << 26  # of an image that a network takes, C · H · W; 4,096 × 4,096 in color
QUOTED = 120  # characters of a value that an error message quotes; a line of a terminal or two
QUOTED_TEXT = 500  # characters of a path, or of a message of other code, in an error message; most are shorter
PATH_BYTES = 1 << 12  # of a path in the list of a job; Linux opens no longer ones
ROW_BYTES = 1 << 16  # of a decision in a part of a job, without the probabilities: a path, two classes, a reason. The
# path has up to 16 KiB: CSV doubles quotes, and Parquet gets 4 characters for a byte that is not UTF-8.
PROBABILITY_BYTES = 32  # of a number in such a table
COLUMN_BYTES = 1 << 12  # of the description of a column, with the smallest and the largest value, without its name
COLUMN_NAMES = 4  # times that a table may have the name of a column; Parquet has it three times, once in base64
JOB_PARTS = 1_000_000  # of a job; each is two files in one folder, and every process lists all parts in memory

# ONNX files

ONNX_BYTES = 174 << 20  # ONNX Runtime, which may refuse it, takes up to 2 bytes for each. Callers may raise it.
ONNX_FIELDS = 500_000  # values, texts and messages, each up to 200 bytes in memory; a node has about 20
ONNX_INTEGER_BYTES = 4 << 20  # of integers outside of raw data, each up to 25 bytes in memory: shapes, tables, axes
ONNX_BATCH = 4_096  # images that a network takes at a time; fewer are padded with zeros to this number

# Deformations

PARTS = 1_000  # of a Compose, and deformations of a PerClass; each part has parameters of its own
DEFORMATIONS = 10_000  # in one file, all parts of all classes
IMAGE_SIDE = 4_096  # pixels; an elastic filter is a matrix of this side
SIGMA = (1e-3, 1e4)  # pixels; the filter is computed for 8 sigma
PIXEL_DISTANCE = 1e6  # alpha of an Elastic: all of it far outside of any image
REFERENCE_SIZE = 1_000_000  # pixels a side of the images for which widths in pixels are given; above any image
WINDOW = 1_000  # pixels; a Thickness takes memory proportional to its square, and time to its logarithm at least
SHIFT = 500  # pixels; its (2 · SHIFT + 1)² values, a million, are listed in 16 MB and then counted
LISTED_VALUES = 1 << 22  # of a Compose that an Exhaustive lists, times its parts; 4,096 values of 1,000 parts, 32 MB
FACTOR = 1e3  # widths relative to the image, magnifications, exponents, strengths; their squares fit float32
LOG_STD = 10.0  # standard deviation of the logarithm of a factor; its exponential is finite in float32
TRANSFORM_PARTS = 200  # of a stored transform of another library, with its arguments
STORED_TRANSFORMS = 200  # of other libraries in one file; trying each of them takes up to 25 ms
TRANSFORM_NUMBER = 4_096  # the largest number among them: a size in pixels, or a count
TIME_PARTS = 10_000  # of a TimeWarp, each with a random number for every image; more than a series has steps
ABS_VALUE = 1e30  # in units of the data; sums of a few such values are finite in float32

# Decisions

TEMPERATURE = (1e-3, 1e3)  # log-probabilities divided by it are finite; fitted ones are between 0.1 and 10

# Requests to a server; the options of `apac serve` change some of them

REQUEST_BYTES = 16 << 20  # the largest photos in base64, or 64 color images of 100 × 100 pixels as numbers
REQUEST_IMAGES = 64  # of a request; they are decoded one after the other, by one thread
REQUEST_PASSES = 16_384  # of an image; the limit of a certified decision
REQUEST_SECONDS = 30.0  # from the request to its decision; proxies usually wait for 60
HEADER_SECONDS = 10.0  # for a client to send the header of a request
UNREAD_SECONDS = 20.0  # in which a client reads nothing of its response, which is in memory
BODY_SECONDS = 10.0  # for a client to send its request, whose body is in memory
QUEUE = 1_024  # images that wait for their first pass; those of 16 full requests
BUFFERED_BYTES = 256 << 20  # bodies of all requests together; 16 of the largest
CONNECTIONS = 512  # open at a time; half of the files that a process may usually open
SPARE_CONNECTIONS = 256  # beyond these, whose requests are refused; those beyond them are closed unread
DECODERS = 2  # threads that decode at the same time, each up to 25 million pixels
COUNTED_SCANS = 10  # of a JPEG file, as cameras and editors write; more count as more pixels
OTHER_VALUES = 1_000  # lists and numbers of a request, beside those of its images
REQUEST_ID = 256  # characters; they are sent back
MODEL_NAME = 100  # characters; it is a part of addresses and of the lines of a log
