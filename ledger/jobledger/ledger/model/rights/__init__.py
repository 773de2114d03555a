"""What somebody may do, and who acts with which rights."""
