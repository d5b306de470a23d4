//! What is refused, and as which error.

use veilgrad::Error;
use veilgrad::gpu::{AdapterKind, GpuEngine, Selector, adapters};
use veilgrad::record::{DType, Engine, Layout, Program, Recording, Slice};

use super::engines;
use super::probe::{INCREMENT, SUM, add};

#[test]
fn lavapipe_is_listed_and_never_chosen_unasked() {
    let all = adapters();
    let lavapipe = all.iter().find(|a| a.answers_to("lavapipe")).expect("lavapipe");
    assert_eq!((lavapipe.kind, lavapipe.backend.as_str()), (AdapterKind::Software, "vulkan"));
    assert!(lavapipe.timestamps && lavapipe.max_binding_bytes >= 128 << 20);
    assert_eq!(all.iter().filter(|a| a.answers_to("lavapipe")).count(), 1, "{all:?}");
    let real = all.iter().any(|a| a.kind != AdapterKind::Software);
    match GpuEngine::open(&Selector::Gpu) {
        Ok(engine) => assert!(real, "{}", engine.describe()),
        Err(Error::NoAdapter(message)) => assert!(!real && message.contains("llvmpipe"), "{message}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_unknown_adapter_says_what_there_is() {
    match GpuEngine::open(&Selector::named("Voodoo 2")) {
        Err(Error::NoAdapter(message)) => {
            for part in ["Voodoo 2", "llvmpipe", "apt install mesa-vulkan-drivers", "--device cpu"] {
                assert!(message.contains(part), "{message}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_binding_over_the_limit_names_its_buffer() {
    // 128 MiB and one element.
    let n = 33_554_433;
    for engine in engines() {
        assert_eq!(engine.max_binding_bytes(), 128 << 20);
        let mut layout = Layout::default();
        let x = layout.add("encoder.pos_embed", DType::F32, n);
        let mut session = engine.open(&layout).unwrap();
        let mut rec = Recording::new();
        rec.scope("blocks.0");
        add(&mut rec, &INCREMENT, x, 1.0).unwrap();
        match session.prepare(&rec) {
            Err(Error::Limit { what, needed, allowed }) => {
                assert!(what.contains("encoder.pos_embed") && what.contains("blocks.0"), "{what}");
                assert_eq!((needed, allowed), (4 * n as u64, 128 << 20));
            }
            other => panic!("{other:?}"),
        }
        // A part of it is fine.
        let mut rec = Recording::new();
        add(&mut rec, &INCREMENT, x.part(64, 64), 1.0).unwrap();
        let program = session.prepare(&rec).unwrap();
        session.run(program).unwrap();
        assert_eq!(session.read(x.part(64, 64)).unwrap(), [1.0; 64]);
    }
}

#[test]
fn a_buffer_over_the_limit_is_refused_by_name() {
    for engine in engines() {
        let n = engine.max_buffer_bytes() as usize / 4 + 1;
        let mut layout = Layout::default();
        layout.add("activations", DType::F32, n);
        match engine.open(&layout).err() {
            Some(Error::Limit { what, needed, allowed }) => {
                assert!(what.contains("activations") && needed > allowed, "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn too_much_workgroup_memory_is_refused_before_the_driver_sees_it() {
    let mut layout = Layout::default();
    let y = layout.add("y", DType::U32, 1);
    // 20 KiB: beyond what every device has, within what lavapipe has.
    for (engine, fits) in engines().into_iter().zip([true, false]) {
        let mut session = engine.open(&layout).unwrap();
        let mut rec = Recording::new();
        rec.dispatch(&SUM).spec("WORDS", 5120).bind("y", y).groups(1).unwrap();
        match session.prepare(&rec) {
            Ok(program) => {
                assert!(fits);
                session.run(program).unwrap();
                assert_eq!(session.read_u32(y).unwrap(), [2016]);
            }
            Err(Error::Limit { what, needed, allowed }) => {
                assert!(!fits && what.contains("workgroup memory"), "{what}");
                assert_eq!((needed, allowed), (20_480, 16_384));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn too_many_groups_in_one_dimension_are_refused() {
    let mut layout = Layout::default();
    let y = layout.add("y", DType::U32, 1);
    let mut session = engines()[1].open(&layout).unwrap();
    let mut rec = Recording::new();
    rec.dispatch(&SUM).spec("WORDS", 64).bind("y", y).groups3([65_536, 1, 1]).unwrap();
    assert!(matches!(session.prepare(&rec), Err(Error::Limit { needed: 65_536, allowed: 65_535, .. })));
}

#[test]
fn slices_and_programs_of_other_sessions_are_refused() {
    for engine in engines() {
        let mut layout = Layout::default();
        let x = layout.add("x", DType::F32, 100);
        let mut session = engine.open(&layout).unwrap();
        let long = Slice { len: 101, ..x };
        let other = Slice { buffer: 1, ..x };
        let typed = Slice { dtype: DType::U32, ..x };
        for bad in [long, other] {
            assert!(matches!(session.read(bad), Err(Error::Kernel { .. })));
            assert!(matches!(session.write(bad, &vec![0.0; bad.len]), Err(Error::Kernel { .. })));
            let mut rec = Recording::new();
            add(&mut rec, &INCREMENT, bad, 1.0).unwrap();
            assert!(matches!(session.prepare(&rec), Err(Error::Kernel { .. })));
            let mut rec = Recording::new();
            rec.clear(bad);
            assert!(matches!(session.prepare(&rec), Err(Error::Kernel { .. })));
        }
        assert!(matches!(session.read_u32(typed), Err(Error::Kernel { .. })));
        assert!(matches!(session.read_u32(x), Err(Error::Kernel { .. })));
        assert!(matches!(session.write(x, &[0.0; 99]), Err(Error::Kernel { .. })));
        assert!(matches!(session.run(Program(0)), Err(Error::Kernel { .. })));
        // None of it harmed the session.
        assert_eq!(session.read(x).unwrap(), [0.0; 100]);
    }
}

#[test]
fn a_lost_device_is_an_error_of_every_call() {
    let engine = GpuEngine::open(&Selector::named("lavapipe")).unwrap();
    let mut layout = Layout::default();
    let x = layout.add("x", DType::F32, 1000);
    let mut session = engine.open(&layout).unwrap();
    let mut rec = Recording::new();
    add(&mut rec, &INCREMENT, x, 1.0).unwrap();
    let program = session.prepare(&rec).unwrap();
    session.run(program).unwrap();
    session.wait().unwrap();
    assert_eq!(engine.lost(), None);
    engine.device().destroy();
    let lost = |result: veilgrad::Result<()>| match result {
        Err(e @ Error::DeviceLost(_)) => assert!(e.to_string().contains("resume"), "{e}"),
        other => panic!("{other:?}"),
    };
    lost(session.run(program).and_then(|()| session.wait()));
    assert!(engine.lost().is_some());
    lost(session.run(program));
    lost(session.wait());
    lost(session.write(x, &[0.0; 1000]));
    lost(session.read(x).map(drop));
    lost(session.prepare(&rec).map(drop));
    lost(engine.open(&layout).map(drop));
}
