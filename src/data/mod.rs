//! Data sources, decoding and augmentation.
