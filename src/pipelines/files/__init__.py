"""Tasks that move files: offload to S3, push over ssh, approved moves and renames."""
