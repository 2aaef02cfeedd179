"""Jobs in the form of the original Perstack: read where that left them, and written as it would keep them."""
