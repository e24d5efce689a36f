//! Fuzz targets of the Chat Completions parser.
