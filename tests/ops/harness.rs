//! What every op must hold, checked from its declaration and a list of inputs.

use rand_core::Rng;
use veilgrad::cpu::{CpuEngine, CpuSession, TwinReal};
use veilgrad::ops::{Backward, Forward, Grad, Op, ParamGrad};
use veilgrad::record::{DType, Layout, Recording, Session, Slice};
use veilgrad::rng::{Key, normal};
use veilgrad::shape::Shape;

pub use crate::engines::{engines, outcomes};

/// Examples, tokens and width that most ops are tried at.
pub const SIZES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (1, 2, 4), (2, 3, 5), (3, 17, 65), (2, 5, 48), (2, 65, 3)];

/// How an input is filled.
#[derive(Clone, Debug)]
pub enum Init {
    /// Standard normal.
    Normal,
    /// Normal times a factor, plus an offset.
    Scaled(f64, f64),
    /// Magnitude at least 0.1: clear of a kink at zero.
    AwayFromZero,
    /// `u32` values below a bound, with repeats.
    Ids(u32),
    /// Given `u32` values.
    Uints(Vec<u32>),
    /// Given floats.
    Floats(Vec<f32>),
}

/// Whether an input has the example axis or is a parameter (or other tensor shared by all examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Example,
    Shared,
}

#[derive(Clone, Debug)]
pub struct Input {
    pub shape: Shape,
    pub init: Init,
    pub role: Role,
}

/// One op with its inputs.
pub struct Case {
    pub name: String,
    pub op: Box<dyn Op>,
    pub inputs: Vec<Input>,
    /// Length of the longest sum: the f32 bound grows with its root.
    pub reduction: usize,
    /// Extra factor on the f32 bound, for ops with a reason.
    pub slack: f64,
}

impl Case {
    pub fn new(op: impl Op + 'static, name: impl Into<String>) -> Self {
        let name = format!("{} {}", op.name(), name.into());
        Case { name, op: Box::new(op), inputs: Vec::new(), reduction: 1, slack: 1.0 }
    }

    /// Adds a per-example input, example axis first.
    pub fn example(mut self, shape: impl Into<Shape>, init: Init) -> Self {
        self.inputs.push(Input { shape: shape.into(), init, role: Role::Example });
        self
    }

    /// Adds a parameter.
    pub fn shared(mut self, shape: impl Into<Shape>, init: Init) -> Self {
        self.inputs.push(Input { shape: shape.into(), init, role: Role::Shared });
        self
    }

    pub fn reduction(mut self, n: usize) -> Self {
        self.reduction = n;
        self
    }

    #[allow(dead_code, reason = "for ops with a stated reason")]
    pub fn slack(mut self, factor: f64) -> Self {
        self.slack = factor;
        self
    }

    fn shapes(&self) -> Vec<Shape> {
        self.inputs.iter().map(|i| i.shape.clone()).collect()
    }

    fn batch(&self) -> usize {
        self.inputs.iter().find(|i| i.role == Role::Example).map_or(1, |i| i.shape.dims()[0])
    }
}

/// Host values of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Float(Vec<f64>),
    Uint(Vec<u32>),
}

impl Data {
    pub fn float(&self) -> &[f64] {
        match self {
            Data::Float(x) => x,
            Data::Uint(_) => panic!("u32 data"),
        }
    }
}

pub fn fill(case: &Case) -> Vec<Data> {
    let key = Key::from_seed(case.name.bytes().map(u64::from).sum());
    let mut out = Vec::new();
    for (i, input) in case.inputs.iter().enumerate() {
        let mut rng = key.stream(i as u64);
        let n = input.shape.len();
        // Values are rounded to f32 so that every engine starts from the same numbers.
        let mut floats =
            |f: &dyn Fn(f64) -> f64| Data::Float((0..n).map(|_| f(normal(&mut rng)) as f32 as f64).collect());
        out.push(match &input.init {
            Init::Normal => floats(&|x| x),
            Init::Scaled(scale, offset) => floats(&|x| x * scale + offset),
            Init::AwayFromZero => floats(&|x| x + 0.1f64.copysign(x)),
            Init::Ids(bound) => Data::Uint((0..n).map(|_| rng.next_u32() % bound).collect()),
            Init::Uints(x) => Data::Uint(x.clone()),
            Init::Floats(x) => Data::Float(x.iter().map(|&x| x as f64).collect()),
        });
        let len = match &out[i] {
            Data::Float(x) => x.len(),
            Data::Uint(x) => x.len(),
        };
        assert_eq!(len, n, "{}: input {i}", case.name);
    }
    out
}

/// An op recorded in a layout of its own: forward and backward programs and every slice.
pub struct Bench {
    pub layout: Layout,
    inputs: Vec<Slice>,
    outputs: Vec<Slice>,
    dy: Slice,
    dx: Vec<Option<Slice>>,
    forward: Recording,
    backward: Recording,
    accumulate: Recording,
}

/// Elements after each tensor that must stay as they were.
const CANARY: usize = 64;

pub fn build(case: &Case) -> Result<Bench, String> {
    let fail = |e: veilgrad::Error| format!("{}: {e}", case.name);
    let shapes = case.shapes();
    let op = &case.op;
    let mut layout = Layout::default();
    let mut add = |name: String, dtype: DType, len: usize| {
        layout.add(name, dtype, len.next_multiple_of(CANARY) + CANARY).part(0, len)
    };
    let inputs: Vec<Slice> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| add(format!("input{i}"), op.input_dtype(i), s.len()))
        .collect();
    let declared = op.outputs(&shapes).map_err(fail)?;
    let outputs: Vec<Slice> =
        declared.iter().enumerate().map(|(i, t)| add(format!("output{i}"), t.dtype, t.shape.len())).collect();
    let dy = add("dy".into(), DType::F32, declared[0].shape.len());
    let batch = case.batch();
    let dx: Vec<Option<Slice>> = (0..inputs.len())
        .map(|i| match op.param_grad(i) {
            ParamGrad::Rows => Some(add(format!("rows{i}"), DType::F32, batch * shapes[i].len())),
            ParamGrad::None if op.differentiable(i) && !op.passes_through(i) => {
                Some(add(format!("dx{i}"), DType::F32, shapes[i].len()))
            }
            _ => None,
        })
        .collect();
    let mut scratch = |tensors: Vec<veilgrad::ops::Tensor>| -> Vec<Slice> {
        tensors.iter().map(|t| add("scratch".into(), t.dtype, t.shape.len())).collect()
    };
    let fwd_scratch = scratch(op.scratch(&shapes));
    let bwd_scratch = scratch(op.scratch_backward(&shapes));
    let mut forward = Recording::new();
    let io = Forward { shapes: &shapes, inputs: &inputs, outputs: &outputs, scratch: &fwd_scratch };
    op.forward(&mut forward, &io).map_err(fail)?;
    let record_backward = |accumulate: bool| {
        let mut rec = Recording::new();
        let grads: Vec<Option<Grad>> = dx.iter().map(|s| s.map(|slice| Grad { slice, accumulate })).collect();
        let io = Backward {
            shapes: &shapes,
            inputs: &inputs,
            outputs: &outputs,
            dy,
            dx: &grads,
            norms: &[],
            scratch: &bwd_scratch,
        };
        op.backward(&mut rec, &io).map(|()| rec).map_err(fail)
    };
    let backward = record_backward(false)?;
    let accumulate = record_backward(true)?;
    Ok(Bench { layout, inputs, outputs, dy, dx, forward, backward, accumulate })
}

/// What one engine computes: outputs, then gradients.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Results of the op.
    pub outputs: Vec<Data>,
    /// Gradients by the inputs, or per-example rows.
    pub dx: Vec<Option<Vec<f64>>>,
    accumulated: Vec<Option<Vec<f64>>>,
}

impl Outcome {
    /// The first result.
    pub fn y(&self) -> &[f64] {
        self.outputs[0].float()
    }
}

pub fn run_on(
    bench: &Bench,
    session: &mut dyn Session,
    data: &[Data],
    dy: &[f64],
) -> Result<Outcome, String> {
    let e = |e: veilgrad::Error| e.to_string();
    let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    // NaN everywhere first: what an op fails to write, or writes past its end, shows.
    for (i, b) in bench.layout.buffers().iter().enumerate() {
        let all = Slice { buffer: i, offset: 0, len: b.len, dtype: b.dtype };
        match b.dtype {
            DType::F32 => session.write(all, &vec![f32::NAN; b.len]).map_err(e)?,
            DType::U32 => session.write_u32(all, &vec![u32::MAX; b.len]).map_err(e)?,
        }
    }
    for (slice, d) in bench.inputs.iter().zip(data) {
        match d {
            Data::Float(x) => session.write(*slice, &narrow(x)).map_err(e)?,
            Data::Uint(x) => session.write_u32(*slice, x).map_err(e)?,
        }
    }
    session.write(bench.dy, &narrow(dy)).map_err(e)?;
    let programs = [&bench.forward, &bench.backward, &bench.accumulate].map(|r| session.prepare(r));
    let [forward, backward, accumulate] = programs;
    session.run(forward.map_err(e)?).map_err(e)?;
    let read = |session: &mut dyn Session, s: Slice| -> Result<Data, String> {
        Ok(match s.dtype {
            DType::F32 => Data::Float(session.read(s).map_err(e)?.into_iter().map(f64::from).collect()),
            DType::U32 => Data::Uint(session.read_u32(s).map_err(e)?),
        })
    };
    let outputs = bench.outputs.iter().map(|s| read(session, *s)).collect::<Result<Vec<_>, _>>()?;
    let grads = |session: &mut dyn Session| -> Result<Vec<Option<Vec<f64>>>, String> {
        bench.dx.iter().map(|s| s.map(|s| read(session, s).map(|d| d.float().to_vec())).transpose()).collect()
    };
    session.run(backward.map_err(e)?).map_err(e)?;
    let dx = grads(session)?;
    session.run(accumulate.map_err(e)?).map_err(e)?;
    let accumulated = grads(session)?;
    for (i, b) in bench.layout.buffers().iter().enumerate() {
        let tail = Slice { buffer: i, offset: b.len - CANARY, len: CANARY, dtype: b.dtype };
        let intact = match b.dtype {
            DType::F32 => session.read(tail).map_err(e)?.iter().all(|x| x.is_nan()),
            DType::U32 => session.read_u32(tail).map_err(e)?.iter().all(|x| *x == u32::MAX),
        };
        if !intact {
            return Err(format!("writes past the end of {}", b.name));
        }
    }
    Ok(Outcome { outputs, dx, accumulated })
}

/// The f64 oracle, at full precision throughout.
pub fn run_oracle(bench: &Bench, data: &[Data], dy: &[f64]) -> Result<Outcome, String> {
    let mut session = CpuEngine::<f64>::new().session(&bench.layout);
    write_inputs(&mut session, bench, data)?;
    let e = |e: veilgrad::Error| e.to_string();
    session.write_real(bench.dy, dy).map_err(e)?;
    let [forward, backward, accumulate] =
        [&bench.forward, &bench.backward, &bench.accumulate].map(|r| session.prepare(r).expect("oracle"));
    session.run(forward).map_err(e)?;
    let mut outputs = Vec::new();
    for s in &bench.outputs {
        outputs.push(match s.dtype {
            DType::F32 => Data::Float(session.read_real(*s).map_err(e)?),
            DType::U32 => Data::Uint(session.read_u32(*s).map_err(e)?),
        });
    }
    let grads = |session: &mut CpuSession<f64>| -> Vec<Option<Vec<f64>>> {
        bench.dx.iter().map(|s| s.map(|s| session.read_real(s).expect("oracle"))).collect()
    };
    session.run(backward).map_err(e)?;
    let dx = grads(&mut session);
    session.run(accumulate).map_err(e)?;
    let accumulated = grads(&mut session);
    Ok(Outcome { outputs, dx, accumulated })
}

fn write_inputs<F: TwinReal>(
    session: &mut CpuSession<F>,
    bench: &Bench,
    data: &[Data],
) -> Result<(), String> {
    for (slice, d) in bench.inputs.iter().zip(data) {
        match d {
            Data::Float(x) => session.write_real(*slice, &x.iter().map(|&x| F::of(x)).collect::<Vec<_>>()),
            Data::Uint(x) => session.write_u32(*slice, x),
        }
        .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// `sum(dy * y)` at f64: the function whose gradients are checked.
fn objective(bench: &Bench, data: &[Data], dy: &[f64]) -> f64 {
    let mut session = CpuEngine::<f64>::new().session(&bench.layout);
    write_inputs(&mut session, bench, data).expect("oracle");
    let program = session.prepare(&bench.forward).expect("oracle");
    session.run(program).expect("oracle");
    let y = session.read_real(bench.outputs[0]).expect("oracle");
    y.iter().zip(dy).map(|(y, g)| y * g).sum()
}

/// The summed gradient of input `i` that the declared form implies.
fn implied_gradient(case: &Case, i: usize, data: &[Data], dy: &[f64], out: &Outcome) -> Option<Vec<f64>> {
    let n = case.inputs[i].shape.len();
    let batch = case.batch();
    let mut sum = vec![0.0; n];
    match case.op.param_grad(i) {
        ParamGrad::Fused => return None,
        ParamGrad::None if !case.op.differentiable(i) => return None,
        ParamGrad::None if case.op.passes_through(i) => return Some(dy.to_vec()),
        ParamGrad::None => return out.dx[i].clone(),
        ParamGrad::Rows => {
            for row in out.dx[i].as_ref()?.chunks(n) {
                sum.iter_mut().zip(row).for_each(|(s, r)| *s += r);
            }
        }
        ParamGrad::Output => {
            for row in dy.chunks(dy.len() / batch) {
                sum.iter_mut().zip(row).for_each(|(s, r)| *s += r);
            }
        }
        ParamGrad::Product { x } => {
            let (x, width_in) = (data[x].float(), case.inputs[x].shape.width());
            let width_out = n / width_in;
            for (x, g) in x.chunks(width_in).zip(dy.chunks(width_out)) {
                for (o, g) in g.iter().enumerate() {
                    for (k, x) in x.iter().enumerate() {
                        sum[o * width_in + k] += g * x;
                    }
                }
            }
        }
        ParamGrad::Lookup { ids } => {
            let Data::Uint(ids) = &data[ids] else { panic!("ids are u32") };
            let width = case.inputs[i].shape.width();
            for (id, g) in ids.iter().zip(dy.chunks(width)) {
                let row = &mut sum[*id as usize * width..(*id as usize + 1) * width];
                row.iter_mut().zip(g).for_each(|(s, g)| *s += g);
            }
        }
    }
    Some(sum)
}

fn compare(what: &str, got: &[f64], want: &[f64], tol: f64) -> Result<(), String> {
    let scale = want.iter().fold(0.0f64, |m, x| m.max(x.abs())).max(1e-30);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        if !((g - w).abs() <= tol * scale) {
            return Err(format!("{what}[{i}] = {g:e}, want {w:e} (scale {scale:e}, tolerance {tol:e})"));
        }
    }
    if got.len() != want.len() {
        return Err(format!("{what}: {} elements, want {}", got.len(), want.len()));
    }
    Ok(())
}

fn compare_outcomes(got: &Outcome, want: &Outcome, tol: f64) -> Result<(), String> {
    for (i, (g, w)) in got.outputs.iter().zip(&want.outputs).enumerate() {
        match (g, w) {
            (Data::Float(g), Data::Float(w)) => compare(&format!("output{i}"), g, w, tol)?,
            (g, w) if g == w => {}
            _ => return Err(format!("output{i}: integers differ")),
        }
    }
    for (name, g, w) in [("dx", &got.dx, &want.dx), ("accumulated dx", &got.accumulated, &want.accumulated)] {
        for (i, (g, w)) in g.iter().zip(w).enumerate() {
            if let (Some(g), Some(w)) = (g, w) {
                compare(&format!("{name}{i}"), g, w, tol)?;
            }
        }
    }
    Ok(())
}

/// Runs every check on one case; an error names the case, the check and the first difference.
pub fn check(case: &Case) -> Result<(), String> {
    let bench = build(case)?;
    let data = fill(case);
    let mut rng = Key::from_seed(99).stream(0);
    let dy: Vec<f64> = (0..bench.dy.len).map(|_| normal(&mut rng) as f32 as f64).collect();
    let context = |check: &'static str| move |e: String| format!("{} ({check}): {e}", case.name);
    let oracle = run_oracle(&bench, &data, &dy).map_err(context("oracle"))?;
    finite_differences(case, &bench, &data, &dy, &oracle).map_err(context("central differences"))?;
    for (once, twice) in oracle.dx.iter().zip(&oracle.accumulated) {
        let (Some(once), Some(twice)) = (once, twice) else { continue };
        let doubled: Vec<f64> = once.iter().map(|x| 2.0 * x).collect();
        compare("accumulated", twice, &doubled, 1e-12).map_err(context("accumulate"))?;
    }
    let tol = case.slack * 16.0 * f32::EPSILON as f64 * (case.reduction as f64).sqrt().max(1.0);
    for engine in engines() {
        let mut session = engine.open(&bench.layout).map_err(|e| e.to_string())?;
        let name: &'static str = if engine.describe().starts_with("cpu") { "cpu f32" } else { "gpu" };
        let got = run_on(&bench, session.as_mut(), &data, &dy).map_err(context(name))?;
        compare_outcomes(&got, &oracle, tol).map_err(context(name))?;
        let again = run_on(&bench, session.as_mut(), &data, &dy).map_err(context(name))?;
        if got.outputs != again.outputs || got.dx != again.dx {
            return Err(context("determinism")(name.into()));
        }
        poison(case, &bench, session.as_mut(), &data, &dy, &got).map_err(context("poison"))?;
    }
    Ok(())
}

fn finite_differences(
    case: &Case,
    bench: &Bench,
    data: &[Data],
    dy: &[f64],
    out: &Outcome,
) -> Result<(), String> {
    const STEP: f64 = 1e-5;
    const MOST: usize = 200;
    for i in 0..data.len() {
        let Some(gradient) = implied_gradient(case, i, data, dy, out) else { continue };
        let n = gradient.len();
        let scale = gradient.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        for k in (0..n).step_by(n.div_ceil(MOST).max(1)) {
            let shifted = |h: f64| {
                let mut data = data.to_vec();
                if let Data::Float(x) = &mut data[i] {
                    x[k] += h;
                }
                objective(bench, &data, dy)
            };
            let numeric = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
            if !((numeric - gradient[k]).abs() <= 1e-6 * scale.max(1.0)) {
                return Err(format!("input {i}[{k}]: backward {:e}, differences {numeric:e}", gradient[k]));
            }
        }
    }
    Ok(())
}

/// With one example all NaN, the results of all others keep their bytes.
fn poison(
    case: &Case,
    bench: &Bench,
    session: &mut dyn Session,
    data: &[Data],
    dy: &[f64],
    clean: &Outcome,
) -> Result<(), String> {
    let batch = case.batch();
    if batch < 2 || case.op.mixes().is_some() {
        return Ok(());
    }
    let mut poisoned = data.to_vec();
    for (input, d) in case.inputs.iter().zip(&mut poisoned) {
        if let (Role::Example, Data::Float(x)) = (input.role, d) {
            let n = x.len() / batch;
            x[..n].fill(f64::NAN);
        }
    }
    let got = run_on(bench, session, &poisoned, dy)?;
    let same = |what: String, g: &[f64], c: &[f64]| {
        let n = g.len() / batch;
        match (n..g.len()).find(|&k| g[k].to_bits() != c[k].to_bits()) {
            Some(k) => Err(format!("{what}[{k}] changed from {} to {}", c[k], g[k])),
            None => Ok(()),
        }
    };
    for (i, (g, c)) in got.outputs.iter().zip(&clean.outputs).enumerate() {
        if let (Data::Float(g), Data::Float(c)) = (g, c) {
            same(format!("output{i}"), g, c)?;
        }
    }
    for (i, (g, c)) in got.dx.iter().zip(&clean.dx).enumerate() {
        if let (Some(g), Some(c)) = (g, c) {
            same(format!("dx{i}"), g, c)?;
        }
    }
    Ok(())
}
