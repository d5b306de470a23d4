//! The engines under test, and what each computes.

use std::sync::LazyLock;

use veilgrad::cpu::CpuEngine;
use veilgrad::gpu::{GpuEngine, Selector};
use veilgrad::record::Engine;

use crate::harness::{Case, Outcome, build, fill, run_on, run_oracle};

/// Every engine under test: the CPU at f32, and lavapipe with all it offers and with what every device has. One
/// device each for the whole run; no lavapipe is a failure.
pub fn engines() -> Vec<Box<dyn Engine>> {
    static DEVICES: LazyLock<[GpuEngine; 2]> = LazyLock::new(|| {
        let lavapipe = Selector::named("lavapipe");
        [GpuEngine::open(&lavapipe), GpuEngine::open_portable(&lavapipe)]
            .map(|engine| engine.expect("lavapipe is installed"))
    });
    let [whole, portable] = DEVICES.clone();
    vec![Box::new(CpuEngine::<f32>::new()), Box::new(whole), Box::new(portable)]
}

/// What every engine computes of a case, the oracle first.
pub fn outcomes(case: &Case, dy: &[f64]) -> Vec<(String, Outcome)> {
    let bench = build(case).expect("records");
    let data = fill(case);
    let mut all = vec![("oracle".to_owned(), run_oracle(&bench, &data, dy).expect("oracle"))];
    for engine in engines() {
        let mut session = engine.open(&bench.layout).expect("session");
        all.push((engine.describe(), run_on(&bench, session.as_mut(), &data, dy).expect("run")));
    }
    all
}
