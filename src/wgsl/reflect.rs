//! Reads the interface of an entry point from its WGSL.

use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, Scalar, ScalarKind, TypeInner};

use super::link::Linked;
use super::{Field, Interface, Slot};
use crate::error::Result;
use crate::record::DType;

/// Parses and validates linked text.
///
/// # Errors
/// [`crate::Error::Shader`] with the file and line of the fault.
pub fn parse(linked: &Linked) -> Result<(Module, ModuleInfo)> {
    let module = naga::front::wgsl::parse_str(&linked.text).map_err(|e| {
        let line = e.location(&linked.text).map_or(1, |l| l.line_number as usize);
        linked.error(line, e.message())
    })?;
    let info =
        Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).map_err(|e| {
            let line = e.location(&linked.text).map_or(1, |l| l.line_number as usize);
            let mut message = e.to_string();
            let mut source = std::error::Error::source(e.as_inner());
            while let Some(cause) = source {
                message.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            linked.error(line, message)
        })?;
    Ok((module, info))
}

/// The interface of `entry`.
///
/// # Errors
/// [`crate::Error::Shader`] if there is no such entry point or it breaks a rule of the interface.
pub fn reflect(linked: &Linked, module: &Module, info: &ModuleInfo, entry: &str) -> Result<Interface> {
    // What has no line of its own is reported where the root module ends: imports come before it, constants after.
    let root = linked.origins.iter().rposition(|o| o.module != "spec").map_or(1, |i| i + 1);
    let Some(index) = module.entry_points.iter().position(|e| e.name == entry) else {
        return Err(linked.error(root, format!("there is no entry point {entry}")));
    };
    let uses = info.get_entry_point(index);
    let mut interface = Interface {
        slots: Vec::new(),
        params: Vec::new(),
        params_bytes: 0,
        workgroup_size: module.entry_points[index].workgroup_size,
        workgroup_bytes: 0,
    };
    let mut layouter = naga::proc::Layouter::default();
    if let Err(e) = layouter.update(module.to_ctx()) {
        return Err(linked.error(root, e.to_string()));
    }
    for (handle, variable) in module.global_variables.iter() {
        let used = uses[handle];
        if used.is_empty() {
            continue;
        }
        let name = variable.name.clone().unwrap_or_default();
        let line = module.global_variables.get_span(handle).location(&linked.text).line_number as usize;
        let fail = |what: String| Err(linked.error(line, what));
        match variable.space {
            AddressSpace::WorkGroup => {
                interface.workgroup_bytes += layouter[variable.ty].size.next_multiple_of(16);
            }
            AddressSpace::Uniform => {
                let TypeInner::Struct { members, span } = &module.types[variable.ty].inner else {
                    return fail(format!("uniform {name} is no struct"));
                };
                if variable.binding.map(|b| (b.group, b.binding)) != Some((0, 0)) {
                    return fail(format!("uniform {name} must be at group 0, binding 0"));
                }
                interface.params_bytes = *span;
                for member in members {
                    let field = member.name.clone().unwrap_or_default();
                    let TypeInner::Scalar(scalar) = module.types[member.ty].inner else {
                        return fail(format!("params field {field} is no scalar"));
                    };
                    let Some(dtype) = dtype(scalar) else {
                        return fail(format!("params field {field} is neither u32 nor f32"));
                    };
                    interface.params.push(Field { name: field, dtype, offset: member.offset });
                }
            }
            AddressSpace::Storage { .. } => {
                let Some(binding) = variable.binding.filter(|b| b.group == 0) else {
                    return fail(format!("{name} is not in group 0"));
                };
                let Some(dtype) = element(module, variable.ty) else {
                    return fail(format!("{name} is no array of u32, f32 or vectors of them"));
                };
                interface.slots.push(Slot {
                    name,
                    binding: binding.binding,
                    dtype,
                    reads: used.contains(GlobalUse::READ),
                    writes: used.contains(GlobalUse::WRITE),
                });
            }
            _ => {}
        }
    }
    interface.slots.sort_by_key(|s| s.binding);
    Ok(interface)
}

fn dtype(scalar: Scalar) -> Option<DType> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => Some(DType::F32),
        (ScalarKind::Uint, 4) => Some(DType::U32),
        _ => None,
    }
}

fn element(module: &Module, ty: naga::Handle<naga::Type>) -> Option<DType> {
    match &module.types[ty].inner {
        TypeInner::Array { base, .. } => element(module, *base),
        TypeInner::Vector { scalar, .. } | TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => {
            dtype(*scalar)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::wgsl::link_with;

    fn read(text: &str, spec: &[(&'static str, u32)], entry: &str) -> Result<Interface> {
        let linked = link_with("ops/top", spec, &|_| Some(text))?;
        let (module, info) = parse(&linked)?;
        reflect(&linked, &module, &info, entry)
    }

    const TEXT: &str = "\
import package::spec::{LANES};
struct Params { n: u32, scale: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> words: array<u32>;
var<workgroup> sums: array<f32, LANES>;
var<workgroup> other: array<vec4<f32>, 100>;
fn load(i: u32) -> f32 { return x[i].x; }
@compute @workgroup_size(LANES)
fn forward(@builtin(local_invocation_index) lane: u32) {
    sums[lane] = load(lane) * params.scale;
    workgroupBarrier();
    if (lane < params.n) { y[lane] += sums[0]; }
}
@compute @workgroup_size(8, 2)
fn count(@builtin(local_invocation_index) lane: u32) {
    words[lane] = u32(other[0].x);
}
";

    #[test]
    fn an_interface_is_what_its_entry_point_uses() {
        let i = read(TEXT, &[("LANES", 36)], "forward").unwrap();
        let slots: Vec<_> =
            i.slots.iter().map(|s| (s.name.as_str(), s.binding, s.dtype, s.reads, s.writes)).collect();
        assert_eq!(slots, [("x", 1, DType::F32, true, false), ("y", 2, DType::F32, true, true)]);
        let params: Vec<_> = i.params.iter().map(|p| (p.name.as_str(), p.dtype, p.offset)).collect();
        assert_eq!(params, [("n", DType::U32, 0), ("scale", DType::F32, 4)]);
        assert_eq!((i.params_bytes, i.workgroup_size, i.workgroup_bytes), (8, [36, 1, 1], 144));

        let i = read(TEXT, &[("LANES", 36)], "count").unwrap();
        assert_eq!(i.slots.len(), 1);
        assert_eq!((i.slots[0].name.as_str(), i.slots[0].dtype), ("words", DType::U32));
        assert!(i.slots[0].writes && !i.slots[0].reads);
        assert_eq!((i.params_bytes, i.workgroup_size, i.workgroup_bytes), (0, [8, 2, 1], 1600));
    }

    #[test]
    fn faults_name_file_and_line() {
        let cases = [
            (TEXT.replace("scale: f32", "scale: vec2<f32>").replace("* params.scale", ""), 3, "no scalar"),
            (TEXT.replace("binding(0)", "binding(7)"), 3, "binding 0"),
            (TEXT.replace("y: array<f32>", "y: array<i32>").replace("+= sums[0]", "+= 1"), 5, "no array"),
            (TEXT.replace("words[lane] =", "y[lane] = 1.0; words[lane] ="), 6, "conflict"),
            (TEXT.replace("return x[i].x", "return x[i]"), 9, ""),
            (TEXT.replace("return x[i].x", "return nothing[i]"), 9, "nothing"),
        ];
        for (text, at, what) in cases {
            let entry = if what == "conflict" { "count" } else { "forward" };
            match read(&text, &[("LANES", 36)], entry) {
                Err(Error::Shader { file, line, message }) => {
                    assert_eq!((file.as_str(), line), ("ops/top.wgsl", at), "{message}");
                    assert!(message.contains(what), "{message}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        let missing = read(TEXT, &[("LANES", 36)], "sideways").unwrap_err().to_string();
        assert_eq!(missing, "ops/top.wgsl:19: there is no entry point sideways");
    }
}
