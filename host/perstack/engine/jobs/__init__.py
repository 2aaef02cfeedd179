"""Jobs: drive, queue, answer, read, rewind, export and delete them."""
