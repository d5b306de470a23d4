//! Which examples form a logical batch.
