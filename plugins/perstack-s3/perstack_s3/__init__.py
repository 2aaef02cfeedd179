"""Storage in an S3 bucket, or in any server with the S3 protocol and conditional writes."""
