"""What a worker shows of itself: its log, and over HTTP its health and its figures."""
