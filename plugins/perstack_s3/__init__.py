"""Jobs in a bucket of S3, or of whatever speaks its protocol with conditional writes."""
