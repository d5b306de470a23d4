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
    let fail = |what: String| Err(linked.error(linked.origins.len(), what));
    let Some(index) = module.entry_points.iter().position(|e| e.name == entry) else {
        return fail(format!("there is no entry point {entry}"));
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
        return fail(e.to_string());
    }
    for (handle, variable) in module.global_variables.iter() {
        let used = uses[handle];
        if used.is_empty() {
            continue;
        }
        let name = variable.name.clone().unwrap_or_default();
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
    if let Some(pair) = interface.slots.windows(2).find(|p| p[0].binding == p[1].binding) {
        return fail(format!("{entry} uses {} and {} of one binding", pair[0].name, pair[1].name));
    }
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
        TypeInner::Vector { scalar, .. } | TypeInner::Scalar(scalar) => dtype(*scalar),
        _ => None,
    }
}
