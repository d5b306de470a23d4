//! What is computed: order, reach, transfers, profile, verification.

use veilgrad::Error;
use veilgrad::gpu::{GpuEngine, Tolerance, Verify, wgpu};
use veilgrad::kernel::{Args, Kernel, Real};
use veilgrad::record::{DType, Engine, Layout, Recording, Slice};

use super::engines;
use super::probe::{INCREMENT, QUADS, SUM, WRONG, add, add_to, number};

fn one(len: usize) -> (Layout, Slice) {
    let mut layout = Layout::default();
    let x = layout.add("x", DType::F32, len);
    (layout, x)
}

#[test]
fn buffers_start_as_zeros() {
    for engine in engines() {
        let mut layout = Layout::default();
        let (x, w) = (layout.add("x", DType::F32, 1000), layout.add("w", DType::U32, 3));
        let mut session = engine.open(&layout).unwrap();
        assert_eq!(session.read(x).unwrap(), vec![0.0; 1000]);
        assert_eq!(session.read_u32(w).unwrap(), vec![0; 3]);
    }
}

#[test]
fn every_dispatch_sees_the_ones_before_it() {
    for engine in engines() {
        // 7 does not divide 100, so that a submission ends inside the program.
        let engine = engine.clone().with_dispatches_per_submit(7);
        let mut layout = Layout::default();
        let (x, y) = (layout.add("x", DType::F32, 100), layout.add("y", DType::F32, 100));
        let mut session = engine.open(&layout).unwrap();
        let mut rec = Recording::new();
        for _ in 0..50 {
            add_to(&mut rec, x, y, 1.0).unwrap();
            add_to(&mut rec, y, x, 1.0).unwrap();
        }
        let program = session.prepare(&rec).unwrap();
        for start in [0.0, 5.0, -3.0] {
            session.write(x, &[start; 100]).unwrap();
            session.run(program).unwrap();
            session.run(program).unwrap();
            assert_eq!(session.read(x).unwrap(), [start + 200.0; 100]);
            assert_eq!(session.read(y).unwrap(), [start + 199.0; 100]);
        }
    }
}

#[test]
fn writes_are_ordered_with_runs() {
    for engine in engines() {
        let mut layout = Layout::default();
        let (x, log) = (layout.add("x", DType::F32, 1), layout.add("log", DType::F32, 64 * 50));
        let mut session = engine.open(&layout).unwrap();
        let programs: Vec<_> = (0..50)
            .map(|i| {
                let mut rec = Recording::new();
                add(&mut rec, &INCREMENT, x, 0.5).unwrap();
                rec.copy(x, log.part(64 * i, 1)).unwrap();
                session.prepare(&rec).unwrap()
            })
            .collect();
        for (i, program) in programs.into_iter().enumerate() {
            session.write(x, &[i as f32]).unwrap();
            session.run(program).unwrap();
        }
        session.write(x, &[-1.0]).unwrap();
        session.wait().unwrap();
        let log = session.read(log).unwrap();
        for i in 0..50 {
            assert_eq!(log[64 * i], i as f32 + 0.5);
        }
        assert_eq!(session.read(x).unwrap(), [-1.0]);
    }
}

#[test]
fn a_thousand_uploads_before_any_dispatch_arrive() {
    for engine in engines() {
        let mut layout = Layout::default();
        let slices: Vec<_> = (0..1000).map(|i| layout.add(format!("x{i}"), DType::F32, 1 + i % 70)).collect();
        let mut session = engine.open(&layout).unwrap();
        for (i, s) in slices.iter().enumerate() {
            session.write(*s, &vec![i as f32; s.len]).unwrap();
        }
        for (i, s) in slices.iter().enumerate() {
            assert_eq!(session.read(*s).unwrap(), vec![i as f32; s.len], "upload {i}");
        }
    }
}

#[test]
fn transfers_larger_than_a_piece_are_whole() {
    let n = (8 << 20) * 2 + 12_345;
    let mut layout = Layout::default();
    let w = layout.add("w", DType::U32, n);
    let mut session = engines()[0].open(&layout).unwrap();
    let data: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    session.write_u32(w, &data).unwrap();
    assert!(session.read_u32(w).unwrap() == data);
    let part = w.part((8 << 20) - 3, 7);
    assert_eq!(session.read_u32(part).unwrap(), data[(8 << 20) - 3..][..7]);
}

#[test]
fn bits_of_floats_survive_a_round_trip() {
    let bits = [0x7fc0_1234, 0xff80_0000, 0x0000_0001, 0x8000_0000, 0x7f80_0001];
    let data = bits.map(f32::from_bits);
    let (layout, x) = one(data.len());
    let mut session = engines()[0].open(&layout).unwrap();
    session.write(x, &data).unwrap();
    assert_eq!(session.read(x).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
}

#[test]
fn slices_are_bound_copied_and_cleared_at_their_offsets() {
    for engine in engines() {
        let (layout, x) = one(64 * 6 + 10);
        let mut session = engine.open(&layout).unwrap();
        let start: Vec<f32> = (0..x.len).map(|i| i as f32).collect();
        session.write(x, &start).unwrap();
        let mut rec = Recording::new();
        add(&mut rec, &INCREMENT, x.part(64, 30), 1000.0).unwrap();
        // Two slices of one buffer in one dispatch.
        add_to(&mut rec, x.part(64, 20), x.part(128, 20), 0.5).unwrap();
        // Inside one buffer, at offsets that are no multiple of the alignment of bindings.
        rec.copy(x.part(65, 5), x.part(201, 5)).unwrap();
        rec.clear(x.part(390, 3));
        rec.copy(x.part(0, 0), x.part(5, 0)).unwrap();
        rec.clear(x.part(7, 0));
        let program = session.prepare(&rec).unwrap();
        session.run(program).unwrap();
        let mut want = start;
        want[64..94].iter_mut().for_each(|x| *x += 1000.0);
        (0..20).for_each(|i| want[128 + i] = want[64 + i] + 0.5);
        (0..5).for_each(|i| want[201 + i] = want[65 + i]);
        want[390..393].fill(0.0);
        assert_eq!(session.read(x).unwrap(), want);
    }
}

#[test]
fn empty_things_do_nothing() {
    for engine in engines() {
        let mut layout = Layout::default();
        let (none, x) = (layout.add("none", DType::F32, 0), layout.add("x", DType::F32, 4));
        let mut session = engine.open(&layout).unwrap();
        let empty = session.prepare(&Recording::new()).unwrap();
        session.run(empty).unwrap();
        session.wait().unwrap();
        session.write(none, &[]).unwrap();
        session.write(x.part(2, 0), &[]).unwrap();
        assert!(session.read(none).unwrap().is_empty());
        assert!(session.read(x.part(4, 0)).unwrap().is_empty());
        assert_eq!(session.read(x).unwrap(), [0.0; 4]);
    }
}

#[test]
fn a_tensor_that_only_begins_a_vector_is_bound_whole() {
    for engine in engines() {
        for n in [1, 3, 4, 6] {
            let (layout, x) = one(n);
            let mut session = engine.open(&layout).unwrap();
            let mut rec = Recording::new();
            rec.dispatch(&QUADS)
                .bind("four", x)
                .n("n", n)
                .n("base", 0)
                .param("step", 3.0)
                .threads(n.div_ceil(4))
                .unwrap();
            let program = session.prepare(&rec).unwrap();
            session.write(x, &vec![2.0; n]).unwrap();
            session.run(program).unwrap();
            assert_eq!(session.read(x).unwrap(), vec![6.0; n]);
        }
    }
}

#[test]
fn more_groups_than_one_dimension_holds() {
    let n = 65_537 * 64 - 5;
    for engine in engines() {
        let mut layout = Layout::default();
        let words = layout.add("words", DType::U32, n);
        let mut session = engine.open(&layout).unwrap();
        let mut rec = Recording::new();
        number(&mut rec, words, 3).unwrap();
        let program = session.prepare(&rec).unwrap();
        session.run(program).unwrap();
        let got = session.read_u32(words).unwrap();
        assert!(got.iter().zip(3..).all(|(w, i)| *w == i) && got.len() == n);
    }
}

#[test]
fn workgroup_memory_is_not_cleared_for_the_kernel_but_works() {
    for engine in engines() {
        let mut layout = Layout::default();
        let y = layout.add("y", DType::U32, 100);
        let mut session = engine.open(&layout).unwrap();
        let mut rec = Recording::new();
        rec.dispatch(&SUM).spec("WORDS", 4096).bind("y", y).groups(100).unwrap();
        let program = session.prepare(&rec).unwrap();
        session.run(program).unwrap();
        assert_eq!(session.read_u32(y).unwrap(), [2016; 100]);
    }
}

#[test]
fn sessions_share_a_device_and_nothing_else() {
    let engine = engines()[0];
    let threads: Vec<_> = (0..16)
        .map(|t| {
            std::thread::spawn(move || {
                let (layout, x) = one(500);
                let mut session = engine.open(&layout).unwrap();
                let mut rec = Recording::new();
                add(&mut rec, &INCREMENT, x, t as f32).unwrap();
                let program = session.prepare(&rec).unwrap();
                // Whoever waits for the device may be handed the answer to another thread's download.
                for i in 1..=200 {
                    session.run(program).unwrap();
                    assert_eq!(session.read(x).unwrap(), [(i * t) as f32; 500]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_profile_names_every_dispatch() {
    let engine = engines()[0].clone().with_dispatches_per_submit(4).with_profiling().unwrap();
    let (layout, x) = one(100_000);
    let mut session = engine.open(&layout).unwrap();
    let mut rec = Recording::new();
    for i in 0..10 {
        rec.scope(format!("node.{i}"));
        add(&mut rec, &INCREMENT, x, 1.0).unwrap();
        rec.clear(x.part(0, 64));
    }
    let program = session.prepare(&rec).unwrap();
    session.run(program).unwrap();
    let times = engine.take_profile();
    assert_eq!(times.len(), 10);
    for (i, t) in times.iter().enumerate() {
        assert_eq!(
            (t.kernel.as_str(), t.label.as_str()),
            ("test/probe.increment", format!("node.{i}").as_str())
        );
        assert!(t.seconds >= 0.0 && t.seconds < 10.0, "{t:?}");
    }
    assert!(times.iter().map(|t| t.seconds).sum::<f64>() > 0.0);
    assert!(engine.take_profile().is_empty());
    assert_eq!(session.read(x).unwrap()[64..], [10.0; 100_000 - 64]);
}

#[test]
fn verification_names_the_first_kernel_that_differs() {
    let watched = |verify: Verify| engines()[1].clone().with_verify(verify, Tolerance::default());
    let (layout, x) = one(70);
    let mut rec = Recording::new();
    rec.scope("right");
    add(&mut rec, &INCREMENT, x, 1.0).unwrap();
    rec.clear(x.part(0, 3));
    rec.scope("wrong");
    add(&mut rec, &WRONG, x, 2.0).unwrap();

    let mut session = watched(Verify::Every).open(&layout).unwrap();
    let program = session.prepare(&rec).unwrap();
    match session.run(program) {
        Err(Error::Differs { kernel, what }) => {
            assert_eq!(kernel, "test/probe.increment (wrong)");
            assert!(what.starts_with("x[69] is 3, the twin has 1"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    // Only the first of this kernel is compared, and it is right.
    let mut session = watched(Verify::Until("test/probe.increment".into())).open(&layout).unwrap();
    let program = session.prepare(&rec).unwrap();
    session.run(program).unwrap();
    assert_eq!(session.read(x).unwrap()[..4], [2.0, 2.0, 2.0, 3.0]);
}

static GELU: Kernel = veilgrad::kernel!("ops/gelu", "forward", gelu);

fn gelu<F: Real>(a: &mut Args<'_, F>) {
    let half = F::of(0.5);
    a.output("y").iter_mut().zip(a.input("x")).for_each(|(y, &x)| {
        *y = half * x * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
    });
}

#[test]
fn an_op_agrees_with_its_twin_checked_or_not() {
    let n = 1000;
    let data: Vec<f32> = (0..n).map(|i| (i as f32 - 500.0) / 80.0).collect();
    let run = |engine: GpuEngine| {
        let mut layout = Layout::default();
        let (x, y) = (layout.add("x", DType::F32, n), layout.add("y", DType::F32, n));
        let mut session =
            engine.with_verify(Verify::Every, Tolerance { relative: 1e-6 }).open(&layout).unwrap();
        let mut rec = Recording::new();
        rec.dispatch(&GELU).bind("x", x).bind("y", y).n("n", n).n("accumulate", 0).threads(n).unwrap();
        let program = session.prepare(&rec).unwrap();
        session.write(x, &data).unwrap();
        session.run(program).unwrap();
        session.read(y).unwrap()
    };
    let [a, b] = engines();
    let want = run(a.clone());
    assert!(want.iter().all(|y| y.is_finite()));
    assert_eq!(want, run(a.clone().with_checked_shaders(true)));
    assert_eq!(want, run(b.clone()));
}

#[test]
fn the_engine_runs_on_the_device_of_a_host_application() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let adapter = adapters.iter().find(|a| a.get_info().name.contains("llvmpipe")).expect("lavapipe");
    let (device, queue) = pollster::block_on(adapter.request_device(&Default::default())).unwrap();
    let engine = GpuEngine::from_device(device.clone(), queue);
    assert!(engine.describe().contains("host application"), "{}", engine.describe());
    assert_eq!(engine.max_binding_bytes(), 128 << 20);
    let (layout, x) = one(100);
    let mut session = engine.open(&layout).unwrap();
    let mut rec = Recording::new();
    add(&mut rec, &INCREMENT, x, 2.5).unwrap();
    let program = session.prepare(&rec).unwrap();
    session.run(program).unwrap();
    assert_eq!(session.read(x).unwrap(), [2.5; 100]);
    assert!(engine.clone().with_profiling().is_err());
    device.destroy();
    assert!(matches!(session.run(program).and_then(|()| session.wait()), Err(Error::DeviceLost(_))));
    assert!(engine.lost().is_some());
}
