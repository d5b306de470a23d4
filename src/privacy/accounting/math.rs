//! Sums and differences of numbers that are known by their logarithms only.

/// A running sum of terms given by their logarithms; neither overflows nor underflows.
#[derive(Clone, Copy, Debug)]
pub struct LogSum {
    top: f64,
    sum: f64,
}

impl LogSum {
    /// The empty sum, 0.
    pub fn new() -> Self {
        LogSum { top: f64::NEG_INFINITY, sum: 0.0 }
    }

    /// Adds `exp(term)`.
    pub fn add(&mut self, term: f64) {
        if term == f64::NEG_INFINITY {
            return;
        }
        if term > self.top {
            self.sum = self.sum * (self.top - term).exp() + 1.0;
            self.top = term;
        } else {
            self.sum += (term - self.top).exp();
        }
    }

    /// Logarithm of the sum; minus infinity if it is empty.
    pub fn ln(&self) -> f64 {
        if self.sum == 0.0 { f64::NEG_INFINITY } else { self.top + self.sum.ln() }
    }
}

/// `ln(e^x - 1)` for x > 0.
pub fn ln_expm1(x: f64) -> f64 {
    if x > 40.0 { x + (-(-x).exp()).ln_1p() } else { x.exp_m1().ln() }
}

/// `ln(1 + e^x)`.
pub fn ln_1p_exp(x: f64) -> f64 {
    if x > 40.0 { x + (-x).exp() } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-14 * want.abs().max(1.0), "{got} {want}");
    }

    #[test]
    fn sums_of_any_size_and_order() {
        let mut sum = LogSum::new();
        assert_eq!(sum.ln(), f64::NEG_INFINITY);
        sum.add(f64::NEG_INFINITY);
        assert_eq!(sum.ln(), f64::NEG_INFINITY);
        for k in [3.0f64, 1.0, 4.0, 1.0, 5.0] {
            sum.add(k.ln() - 5000.0);
        }
        close(sum.ln(), 14f64.ln() - 5000.0);
        sum.add(1e6);
        close(sum.ln(), 1e6);
    }

    #[test]
    fn exponentials_keep_their_digits() {
        close(ln_expm1(1e-12) - 1e-12f64.ln(), 0.5e-12);
        close(ln_expm1(1.0), (1f64.exp() - 1.0).ln());
        close(ln_expm1(1e5), 1e5);
        close(ln_expm1(40.0), ln_expm1(40.0 + 1e-13));
        close(ln_1p_exp(-800.0), 0.0);
        close(ln_1p_exp(0.0), 2f64.ln());
        close(ln_1p_exp(1e5), 1e5);
        assert!((ln_1p_exp(-50.0) / (-50f64).exp() - 1.0).abs() <= 1e-14);
    }
}
