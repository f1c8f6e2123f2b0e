"""Files, images, video, and readers of TensorFlow and PyTorch files without those frameworks."""
