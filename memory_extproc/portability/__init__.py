"""Export and import of memories: file formats, and folders in sync with the store."""
