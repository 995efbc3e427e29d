"""Memories on their way out and in: file formats, the export, the import, folders that follow the store."""
