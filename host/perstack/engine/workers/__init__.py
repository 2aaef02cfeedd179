"""Workers: processes that claim orders from a dispatcher and drive their Jobs."""
