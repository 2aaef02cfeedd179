"""Workers: processes that drive the Jobs which a dispatcher gives them."""
