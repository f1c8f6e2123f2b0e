"""Training and test data of frame interpolation: triplets from folders, videos, TFRecords, ArrayRecord and tfds."""
