"""Write signed statements over log heads, send them to anchors outside the storage, and compare logs with them."""
