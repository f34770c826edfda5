"""What training leaves behind: runs, their folders, and how files are written."""
