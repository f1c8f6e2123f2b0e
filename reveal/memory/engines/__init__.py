"""Search engines: exact on devices, FAISS, Milvus."""
