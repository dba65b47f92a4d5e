"""What studies of many runs share: an agenda that resumes, processes that share a GPU, a command line."""
