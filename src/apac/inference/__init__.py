"""Run a network fast: engines, ONNX files, worker threads."""
