"""Training data of frame interpolation: triplets from picture folders, videos, TFRecords, ArrayRecord and tfds."""
