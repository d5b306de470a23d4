//! Every embedded module, entry point and declared set of constants: linked, validated, within the limits of every
//! device, with uniform barriers, and written out for Vulkan, Metal, DX12 and browsers. Each check is shown to fail.

use std::collections::BTreeSet;

use veilgrad::wgsl::check::{check, declared_specs, translated};
use veilgrad::wgsl::{modules, source};

fn has_entry_point(module: &str) -> bool {
    source(module).expect("embedded").lines().any(|l| l.trim_start().starts_with("@compute"))
}

#[test]
fn every_module_passes_every_check() {
    let mut faults = Vec::new();
    let mut entry_points = 0;
    for module in modules().filter(|m| has_entry_point(m)) {
        faults.extend(check(module, &source));
        entry_points += source(module).unwrap().matches("@compute").count();
    }
    let faults: BTreeSet<String> = faults.iter().map(ToString::to_string).collect();
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.into_iter().collect::<Vec<_>>().join("\n")
    );
    assert!(entry_points > 30, "{entry_points} entry points");
}

#[test]
fn every_library_module_is_imported() {
    for library in modules().filter(|m| !has_entry_point(m)) {
        let line = format!("import package::{}::", library.replace('/', "::"));
        let used = modules().any(|m| source(m).unwrap().lines().any(|l| l.starts_with(&line)));
        assert!(used, "nothing imports {library}");
    }
}

#[test]
fn every_function_of_the_library_carries_its_family() {
    for library in modules().filter(|m| !has_entry_point(m)) {
        let stem = library.rsplit('/').next().unwrap();
        let family = stem.split('_').next().unwrap();
        for line in source(library).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("fn ") {
                assert!(rest.starts_with(&format!("{family}_")), "{library}: {line}");
            }
        }
    }
}

#[test]
fn translations_are_what_they_say() {
    let t = translated("ops/gelu", "forward", &[]).unwrap();
    assert_eq!(t.spirv[0], 0x0723_0203);
    assert!(t.msl.contains("kernel void forward"), "{}", t.msl);
    assert!(t.hlsl.contains("[numthreads(64, 1, 1)]"), "{}", t.hlsl);
    assert!(t.wgsl.contains("fn forward"), "{}", t.wgsl);
    // One entry point each: the bindings of the others may carry the same numbers.
    assert!(!t.msl.contains("backward") && !t.hlsl.contains("backward("));
    assert!(translated("ops/gelu", "sideways", &[]).is_err());
}

#[test]
fn constants_are_declared_in_comments() {
    let text = "// Head.\n// spec: A=1|2, B=3; A=4, B=5\nimport package::spec::{A, B};\n// spec: A=6, B=7\n";
    let specs = declared_specs("ops/x", text).unwrap();
    let want = [[("A", 1), ("B", 3)], [("A", 2), ("B", 3)], [("A", 4), ("B", 5)], [("A", 6), ("B", 7)]];
    assert_eq!(specs, want.map(|s| s.to_vec()));
    assert_eq!(declared_specs("ops/x", "fn f() {}").unwrap(), [vec![]]);
    for bad in ["// spec: A", "// spec: A=", "// spec: A=x", "// spec: A=1,", "// spec: A=1;"] {
        assert!(declared_specs("ops/x", bad).is_err(), "{bad}");
    }
}

/// A kernel with holes; `HEAD` at module scope, `BODY` in the entry point, `SIZE` its workgroup size.
const TEMPLATE: &str = "\
struct Params { n: u32, rate: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>; // (n)
@group(0) @binding(2) var<storage, read_write> ids: array<u32>; // (n)
var<workgroup> sums: array<f32, 64>;
HEAD
@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32, @builtin(global_invocation_id) gid: vec3<u32>) {
    x[lane] = sums[lane] + params.rate + f32(params.n + ids[lane] + wg.x + gid.x);
BODY
}
";

fn faults(size: &str, head: &str, body: &str) -> Vec<String> {
    let text = TEMPLATE.replace("SIZE", size).replace("HEAD", head).replace("BODY", body);
    let text: &'static str = Box::leak(text.into_boxed_str());
    check("ops/x", &|name| (name == "ops/x").then_some(text)).iter().map(ToString::to_string).collect()
}

/// Refused at a line of `body` (from 1), with a message that contains `what`.
fn refused(head: &str, body: &str, line: usize, what: &str) {
    let found = faults("64", head, body);
    let at = format!("ops/x.wgsl:{}: ", 8 + head.lines().count().max(1) - 1 + 1 + line);
    let fits = found.iter().any(|f| f.starts_with(&at) && f.contains(what));
    assert!(fits, "wanted {at}...{what}, found {found:#?} in\n{body}");
}

fn accepted(head: &str, body: &str) {
    let found = faults("64", head, body);
    assert!(found.is_empty(), "{found:#?} in\n{body}");
}

const BARRIER: &str = "barrier where invocations may have parted";

#[test]
fn uniform_barriers_are_accepted() {
    accepted("", "workgroupBarrier();");
    accepted("", "if (wg.x < params.n) {\n workgroupBarrier();\n}");
    accepted("", "for (var i = 0u; i < params.n; i++) {\n workgroupBarrier();\n}");
    accepted(
        "",
        "for (var h = 32u; h > 0u; h /= 2u) {\n if (lane < h) { sums[lane] += sums[lane + h]; }\n workgroupBarrier();\n}",
    );
    accepted(
        "",
        "var i = 0u;\nloop {\n i++;\n if (i > params.n) { break; }\n if (i == 3u) { continue; }\n workgroupBarrier();\n}",
    );
    accepted("", "for (var i = lane; i < params.n; i += 64u) { x[i] = 0.0; }\nworkgroupBarrier();");
    accepted("", "for (var i = 0u; i < ids[lane]; i++) { if (x[i] > 0.0) { break; } }\nworkgroupBarrier();");
    accepted("", "switch params.n {\n case 1u: { workgroupBarrier(); }\n default: {}\n}");
    accepted("", "workgroupBarrier();\nif (lane > 3u) { return; }\nx[0] = 1.0;");
    accepted("fn meet(v: f32) -> f32 { workgroupBarrier(); return v; }", "x[0] = meet(x[lane]);");
    accepted(
        "fn twice(v: u32) -> u32 { return v * 2u; }",
        "if (twice(wg.x) > params.n) { workgroupBarrier(); }",
    );
    accepted("", "let n = workgroupUniformLoad(&sums[3]);\nif (n > 0.0) { workgroupBarrier(); }");
}

#[test]
fn barriers_under_varying_conditions_are_refused() {
    refused("", "if (lane < 3u) {\n workgroupBarrier();\n}", 2, BARRIER);
    refused("", "if (gid.x < params.n) {\n} else {\n workgroupBarrier();\n}", 3, BARRIER);
    refused("", "if (x[0] > 1.0) {\n storageBarrier();\n}", 2, BARRIER);
    refused("", "if (sums[0] > 1.0) {\n workgroupBarrier();\n}", 2, BARRIER);
    refused("", "for (var i = 0u; i < ids[0]; i++) {\n workgroupBarrier();\n}", 2, BARRIER);
    refused("", "for (var i = lane; i < params.n; i += 64u) {\n workgroupBarrier();\n}", 2, BARRIER);
    refused("", "switch lane {\n case 1u: {\n workgroupBarrier();\n }\n default: {}\n}", 3, BARRIER);
    refused("", "loop {\n workgroupBarrier();\n continuing {\n break if lane > 3u;\n }\n}", 2, BARRIER);
}

#[test]
fn variables_carry_what_varies() {
    refused("", "var n = 1u;\nn = lane;\nif (n > 2u) {\n workgroupBarrier();\n}", 4, BARRIER);
    refused(
        "",
        "var n = 1u;\nif (lane > 2u) { n = 5u; }\nif (n > 2u) {\n workgroupBarrier();\n}",
        4,
        BARRIER,
    );
    refused(
        "",
        "var a = array<u32, 4>();\na[1] = lane;\nif (a[0] > 2u) {\n workgroupBarrier();\n}",
        4,
        BARRIER,
    );
    // Known only in the second round of the loop.
    refused(
        "",
        "var n = 0u;\nfor (var i = 0u; i < 9u; i++) {\n if (n > 3u) {\n workgroupBarrier();\n }\n n = lane;\n}",
        4,
        BARRIER,
    );
    refused("", "var i = 0u;\nloop {\n if (i > lane) { break; }\n i++;\n workgroupBarrier();\n}", 5, BARRIER);
    refused(
        "",
        "for (var i = 0u; i < 9u; i++) {\n if (lane == i) { continue; }\n workgroupBarrier();\n}",
        3,
        BARRIER,
    );
    // A count of rounds that varies.
    refused("", "var n = 0u;\nwhile (n < lane) { n++; }\nif (n > 2u) {\n workgroupBarrier();\n}", 4, BARRIER);
}

#[test]
fn calls_carry_what_varies() {
    let call = "call of a function with a barrier";
    refused("fn meet() { workgroupBarrier(); }", "if (lane < 3u) {\n meet();\n}", 2, call);
    refused(
        "fn twice(v: u32) -> u32 { return v * 2u; }",
        "if (twice(lane) > 1u) {\n workgroupBarrier();\n}",
        2,
        BARRIER,
    );
    refused(
        "fn first() -> f32 { return x[0]; }",
        "if (first() > 1.0) {\n workgroupBarrier();\n}",
        2,
        BARRIER,
    );
    refused(
        "fn put(p: ptr<function, u32>, v: u32) { *p = v; }",
        "var n = 0u;\nput(&n, lane);\nif (n > 1u) {\n workgroupBarrier();\n}",
        4,
        BARRIER,
    );
    refused(
        "fn put(p: ptr<function, u32>) { *p = ids[0]; }",
        "var n = 0u;\nput(&n);\nif (n > 1u) {\n workgroupBarrier();\n}",
        4,
        BARRIER,
    );
    let head = "fn put(p: ptr<function, u32>, v: u32) { *p = v; if (*p > 1u) { workgroupBarrier(); } }";
    let found = faults("64", head, "var n = 0u;\nput(&n, lane);");
    assert!(found.len() == 1 && found[0].starts_with("ops/x.wgsl:6: barrier"), "{found:#?}");
    // Only the second caller passes what varies: the fault is in the helper.
    let head = "fn meet(v: u32) { if (v > 1u) { workgroupBarrier(); } }";
    accepted(head, "meet(wg.x);");
    let found = faults("64", head, "meet(wg.x);\nmeet(lane);");
    assert!(found.len() == 1 && found[0].starts_with("ops/x.wgsl:6: barrier"), "{found:#?}");
}

#[test]
fn returns_before_the_last_barrier_are_refused() {
    let early = "return before the last barrier";
    refused("", "if (wg.x >= params.n) { return; }\nworkgroupBarrier();", 1, early);
    refused(
        "",
        "for (var i = 0u; i < 3u; i++) {\n workgroupBarrier();\n if (i > params.n) { return; }\n}",
        3,
        early,
    );
    refused("fn meet() { workgroupBarrier(); }", "if (wg.x > 1u) {\n return;\n}\nmeet();", 2, early);
    let head = "fn meet(v: u32) -> u32 { if (v > 1u) { return 1u; } workgroupBarrier(); return 0u; }";
    let found = faults("64", head, "ids[0] = meet(wg.x);");
    assert!(found.len() == 1 && found[0].contains(early) && found[0].contains(":6:"), "{found:#?}");
}

#[test]
fn limits_are_those_of_every_device() {
    let over = |size: &str, head: &str, body: &str, what: &str| {
        let found = faults(size, head, body);
        assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:#?}");
    };
    assert!(faults("256", "", "").is_empty());
    over("257", "", "", "257 invocations, allowed are 256");
    over("2, 1, 65", "", "", "65 invocations along z");
    assert!(faults("64", "var<workgroup> big: array<f32, 4032>;", "big[0] = 1.0;").is_empty());
    over("64", "var<workgroup> big: array<f32, 4033>;", "big[0] = 1.0;", "16400 bytes of workgroup memory");
    // What an entry point does not use costs it nothing.
    assert!(faults("64", "var<workgroup> big: array<f32, 4033>;", "").is_empty());
    let bindings: String = (3..=9)
        .map(|i| format!("@group(0) @binding({i}) var<storage, read_write> b{i}: array<f32>; // (n)\n"))
        .collect();
    let uses = |n: usize| (3..=n).map(|i| format!("b{i}[0] = 1.0;")).collect::<String>();
    assert!(faults("64", &bindings, &uses(8)).is_empty());
    over("64", &bindings, &uses(9), "9 storage buffers, allowed are 8");
}

#[test]
fn house_rules_hold() {
    let own = "compared with itself";
    refused("", "let v = x[lane];\nif (v != v) { x[0] = 0.0; }", 2, own);
    refused("", "if (x[lane] != x[lane]) { x[0] = 0.0; }", 1, own);
    refused("", "var v = x[lane];\nif (!(v == v)) { x[0] = 0.0; }", 2, own);
    accepted("", "if (x[lane] != x[lane + 1u]) { x[0] = 0.0; }");
    refused("", "x[0] = f32(arrayLength(&x));", 1, "length in params");
    refused("", "x[0] = bitcast<f32>(0xff800000u);", 1, "infinity");
    accepted(
        "",
        "if ((bitcast<u32>(x[0]) & 0x7f800000u) == 0x7f800000u) { x[0] = bitcast<f32>(0x7f7fffffu); }",
    );

    let head = |line: &str, body: &str, what: &str| {
        let found = faults("64", line, body);
        let fits = found.iter().any(|f| f.starts_with("ops/x.wgsl:6: ") && f.contains(what));
        assert!(fits, "{what}: {found:#?}");
    };
    head("@group(0) @binding(3) var<storage, read> r: array<f32>; // (n)", "x[0] = r[0];", "read_write");
    head("@group(0) @binding(3) var<storage, read_write> r: array<f32>;", "x[0] = r[0];", "shape");
    head("@group(1) @binding(3) var<storage, read_write> r: array<f32>; // (n)", "x[0] = r[0];", "group 0");
    head("@group(0) @binding(3) var<uniform> other: Params;", "x[0] = other.rate;", "params");
    head("fn bad(v: f32) -> bool { return -v != -v; }", "if (bad(x[0])) { x[0] = 0.0; }", own);
    head("override SCALE: f32 = 2.0;", "x[0] = SCALE;", "package::spec");
    head(
        "@group(0) @binding(3) var<storage, read_write> a: atomic<f32>; // ()",
        "atomicAdd(&a, 1.0);",
        "float atomics",
    );
}

#[test]
fn what_does_not_link_or_parse_is_refused() {
    refused("", "x[0] = nothing;", 1, "nothing");
    refused("", "x[0] = 1u;", 1, "");
    let check_text = |text: &'static str| {
        let found = check("ops/x", &|name| (name == "ops/x").then_some(text));
        found.into_iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n")
    };
    assert!(check_text("import package::lib::none::{x};").contains("no module lib/none"));
    assert!(check_text("import package::spec::{TM};\n").contains("TM was not supplied"));
    assert!(check_text("// spec: TM=4, TN=2\nimport package::spec::{TM};\n").contains("TN"));
    assert!(check_text("// spec: TM\nimport package::spec::{TM};\n").contains("ops/x.wgsl:1"));
    assert!(check("ops/none", &source)[0].to_string().contains("no module ops/none"));
}
