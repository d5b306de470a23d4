//! Comparison of dispatches with their f64 twins, from the GPU's own inputs: names the first kernel that differs.

use crate::error::{Error, Result};
use crate::kernel::{Args, Kernel, View};
use crate::record::Dispatch;

/// Which dispatches are compared with their twins. Each comparison downloads every binding: slow, for finding a
/// faulty kernel or driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// None.
    #[default]
    Off,
    /// All.
    Every,
    /// All up to and including the session's first dispatch of this kernel (`ops/gelu.forward`); none after it.
    Until(String),
}

/// How far a kernel may be from its twin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed difference, relative to the largest magnitude in the binding that is compared.
    pub relative: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { relative: 1e-4 }
    }
}

/// Follows a session through its dispatches.
pub(super) struct Watch(Verify);

impl Watch {
    pub fn new(verify: Verify) -> Self {
        Watch(verify)
    }

    /// Whether any dispatch to come may be compared.
    pub fn on(&self) -> bool {
        self.0 != Verify::Off
    }

    /// Whether the next dispatch, of this kernel, is compared.
    pub fn wants(&mut self, kernel: &Kernel) -> bool {
        if let Verify::Until(last) = &self.0
            && *last == kernel.to_string()
        {
            self.0 = Verify::Off;
            return true;
        }
        self.on()
    }
}

/// Contents of a binding.
#[derive(Clone, Debug)]
pub(super) enum Words {
    Float(Vec<f32>),
    Uint(Vec<u32>),
}

/// Runs the twin on what the bindings held before, and compares what the dispatch wrote.
///
/// # Errors
/// [`Error::Differs`] with the first element that differs.
pub(super) fn compare(
    dispatch: &Dispatch,
    before: Vec<(&'static str, Words)>,
    after: &[(&'static str, Words)],
    tolerance: &Tolerance,
) -> Result<()> {
    enum Wide {
        Float(Vec<f64>),
        Uint(Vec<u32>),
    }
    let mut wide: Vec<(&'static str, Wide)> = before
        .into_iter()
        .map(|(name, words)| match words {
            Words::Float(x) => (name, Wide::Float(x.into_iter().map(f64::from).collect())),
            Words::Uint(x) => (name, Wide::Uint(x)),
        })
        .collect();
    let views = wide.iter_mut().map(|(name, words)| match words {
        Wide::Float(x) => (*name, View::Float(x.as_mut_slice())),
        Wide::Uint(x) => (*name, View::Uint(x.as_mut_slice())),
    });
    (dispatch.kernel.f64)(&mut Args::new(dispatch.kernel, &dispatch.params, views.collect()));
    for (name, got) in after {
        let Some((_, twin)) = wide.iter().find(|(n, _)| n == name) else { continue };
        let fault = match (got, twin) {
            (Words::Float(got), Wide::Float(twin)) => {
                difference(got, twin, tolerance.relative, dispatch.kernel.jumps)
            }
            (Words::Uint(got), Wide::Uint(twin)) => got
                .iter()
                .zip(twin)
                .position(|(g, t)| g != t)
                .map(|i| format!("[{i}] is {}, the twin has {}", got[i], twin[i])),
            _ => Some(" changed its type".to_owned()),
        };
        if let Some(fault) = fault {
            return Err(Error::Differs {
                kernel: format!("{} ({})", dispatch.kernel, dispatch.label),
                what: format!("{name}{fault}"),
            });
        }
    }
    Ok(())
}

/// The first element that differs by more than `relative` times the largest finite magnitude of the twin, beyond
/// the share of elements that may.
fn difference(got: &[f32], twin: &[f64], relative: f64, share: f64) -> Option<String> {
    let scale = twin.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
    // Devices may flush what is too small for a normal f32.
    let allowed = relative * scale + f32::MIN_POSITIVE as f64;
    let differs = |&i: &usize| {
        let (g, t) = (got[i], twin[i]);
        let same_nan = g.is_nan() && t.is_nan();
        // A twin's value beyond f32 is infinite on the device.
        let same_infinity = g.is_infinite() && g as f64 == (t as f32) as f64;
        !(same_nan || same_infinity || (g as f64 - t).abs() <= allowed)
    };
    let i = (0..got.len()).filter(differs).nth((share * got.len() as f64) as usize)?;
    Some(format!("[{i}] is {}, the twin has {} (allowed difference {allowed:e})", got[i], twin[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_to_the_largest() {
        assert_eq!(difference(&[1000.0, 0.05], &[1000.0, 0.0], 1e-4, 0.0), None);
        assert!(
            difference(&[1000.0, 0.15], &[1000.0, 0.0], 1e-4, 0.0)
                .is_some_and(|m| m.starts_with("[1] is 0.15"))
        );
        assert_eq!(difference(&[0.0], &[1e-45], 1e-4, 0.0), None);
    }

    #[test]
    fn a_share_may_jump() {
        let (got, twin) = ([0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(difference(&got, &twin, 1e-4, 0.5), None);
        assert!(difference(&got, &twin, 1e-4, 0.49).is_some_and(|m| m.starts_with("[3]")));
    }

    #[test]
    fn what_is_not_finite_must_agree() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(difference(&[nan, inf, -inf], &[f64::NAN, 1e300, f64::NEG_INFINITY], 1e-4, 0.0), None);
        for (got, twin) in [(nan, 0.0), (0.0, f64::NAN), (inf, 1.0), (1.0, f64::INFINITY), (inf, f64::NAN)] {
            assert!(difference(&[got], &[twin], 1e-4, 0.0).is_some(), "{got} {twin}");
        }
    }

    #[test]
    fn until_stops_after_the_first_of_its_kind() {
        static A: Kernel = Kernel { module: "ops/a", entry: "f", f64: |_| {}, f32: |_| {}, jumps: 0.0 };
        static B: Kernel = Kernel { module: "ops/b", entry: "f", f64: |_| {}, f32: |_| {}, jumps: 0.0 };
        let mut watch = Watch::new(Verify::Until("ops/b.f".into()));
        let seen = [&A, &A, &B, &A, &B].map(|k| watch.wants(k));
        assert_eq!(seen, [true, true, true, false, false]);
        assert!(!Watch::new(Verify::Off).wants(&A));
    }
}
