//! What a mechanism costs: events, accountants, calibration.
