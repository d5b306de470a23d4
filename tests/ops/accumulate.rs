use veilgrad::ops::accumulate;
use veilgrad::record::{DType, Layout, Recording};

#[test]
fn the_source_is_added() {
    for n in [1, 63, 64, 65, 1000] {
        let mut layout = Layout::default();
        let (from, to) = (layout.add("from", DType::F32, n), layout.add("to", DType::F32, n));
        let mut rec = Recording::new();
        accumulate::record(&mut rec, from, to).unwrap();
        for engine in crate::harness::engines() {
            let mut session = engine.open(&layout).unwrap();
            session.write(from, &(0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
            session.write(to, &vec![0.5; n]).unwrap();
            let program = session.prepare(&rec).unwrap();
            session.run(program).unwrap();
            let want: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
            assert_eq!(session.read(to).unwrap(), want);
        }
        assert!(accumulate::record(&mut rec, from, from).is_err());
    }
}
