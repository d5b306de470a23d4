//! Checks of shaders that need no device: limits, house rules, uniform barriers, and translation to what drivers
//! take. naga 30 looks at none of these (barriers, workgroup memory, counts); a test runs them over every embedded
//! module.
//!
//! A module that imports constants from `package::spec` says in a comment line for which values it is checked:
//!
//! ```text
//! // spec: TM=4|8, TN=2, LANES=8; TM=8, TN=4, LANES=32
//! ```
//!
//! Sets are separated by `;`, constants by `,`, alternative values by `|` (every combination is checked). Several
//! such lines add up. The constants of imported modules are listed by the module that imports them.

use naga::valid::ModuleInfo;
use naga::{AddressSpace, Arena, Expression, Handle, Literal, Module, ScalarKind, StorageAccess, TypeInner};

use super::link::{Linked, link_with};
use super::uniform::uniform_barriers;
use super::{Interface, Spec, reflect};
use crate::error::{Error, Result};

/// Most workgroup memory of a kernel, in bytes: what every device has.
pub const MAX_WORKGROUP_BYTES: u32 = 16_384;
/// Most storage buffers of a kernel: what every device has.
pub const MAX_STORAGE_BUFFERS: usize = 8;
/// Most invocations of a workgroup: what every device has.
pub const MAX_INVOCATIONS: u32 = 256;
/// Most invocations along z.
const MAX_ALONG_Z: u32 = 64;

/// The sets of constants that a module's `// spec:` lines declare; one empty set if it has none.
///
/// # Errors
/// [`Error::Shader`] for a line that does not parse.
pub fn declared_specs(module: &str, text: &'static str) -> Result<Vec<Vec<(&'static str, u32)>>> {
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(sets) = line.strip_prefix("// spec:") else { continue };
        for set in sets.split(';') {
            let Some(combined) = combinations(set) else {
                return Err(Error::Shader {
                    file: format!("{module}.wgsl"),
                    line: i + 1,
                    message: "write `// spec: TM=4|8, TN=2; TM=8, TN=4`".into(),
                });
            };
            all.extend(combined);
        }
    }
    if all.is_empty() {
        all.push(Vec::new());
    }
    Ok(all)
}

fn combinations(set: &'static str) -> Option<Vec<Spec>> {
    let mut all = vec![Spec::new()];
    for item in set.split(',') {
        let (name, values) = item.split_once('=')?;
        let values = values.split('|').map(|v| v.trim().parse::<u32>().ok()).collect::<Option<Vec<_>>>()?;
        all = all
            .into_iter()
            .flat_map(|spec| {
                values.iter().map(move |v| {
                    let mut spec = spec.clone();
                    spec.push((name.trim(), *v));
                    spec
                })
            })
            .collect();
    }
    Some(all)
}

/// Everything that is wrong with the entry points of `module` under its declared constants. `lookup` gives the
/// text of a module by name, e.g. [`super::source`].
pub fn check(module: &str, lookup: &dyn Fn(&str) -> Option<&'static str>) -> Vec<Error> {
    let specs = lookup(module).map_or(Ok(vec![Vec::new()]), |text| declared_specs(module, text));
    match specs {
        Ok(specs) => specs.iter().flat_map(|spec| check_spec(module, spec, lookup)).collect(),
        Err(error) => vec![error],
    }
}

fn check_spec(module: &str, spec: &Spec, lookup: &dyn Fn(&str) -> Option<&'static str>) -> Vec<Error> {
    let linked = match link_with(module, spec, lookup) {
        Ok(linked) => linked,
        Err(error) => return vec![error],
    };
    let (ir, info) = match reflect::parse(&linked) {
        Ok(parsed) => parsed,
        Err(error) => return vec![error],
    };
    let mut faults = house_rules(&linked, &ir);
    faults.extend(uniform_barriers(&linked, &ir));
    for entry in &ir.entry_points {
        match reflect::reflect(&linked, &ir, &info, &entry.name) {
            Ok(interface) => faults.extend(limits(&linked, &entry.name, &interface)),
            Err(error) => faults.push(error),
        }
        if let Err(error) = translate(&linked, &ir, &info, &entry.name) {
            faults.push(error);
        }
    }
    faults
}

fn limits(linked: &Linked, entry: &str, interface: &Interface) -> Vec<Error> {
    let [x, y, z] = interface.workgroup_size.map(u64::from);
    let needs = [
        ("bytes of workgroup memory", interface.workgroup_bytes as u64, MAX_WORKGROUP_BYTES as u64),
        ("storage buffers", interface.slots.len() as u64, MAX_STORAGE_BUFFERS as u64),
        ("invocations", x.saturating_mul(y).saturating_mul(z), MAX_INVOCATIONS as u64),
        ("invocations along z", z, MAX_ALONG_Z as u64),
    ];
    let line = linked.text.lines().position(|l| l.starts_with(&format!("fn {entry}("))).map_or(1, |i| i + 1);
    needs
        .into_iter()
        .filter(|(_, needed, allowed)| needed > allowed)
        .map(|(what, needed, allowed)| {
            linked.error(line, format!("{entry} uses {needed} {what}, allowed are {allowed}"))
        })
        .collect()
}

fn house_rules(linked: &Linked, module: &Module) -> Vec<Error> {
    let mut faults = Vec::new();
    let at = |span: naga::Span| span.location(&linked.text).line_number as usize;
    let source_line = |line: usize| linked.text.lines().nth(line - 1).unwrap_or("");
    for (handle, variable) in module.global_variables.iter() {
        let line = at(module.global_variables.get_span(handle));
        let name = variable.name.as_deref().unwrap_or("");
        if float_atomic(module, variable.ty) {
            faults.push(linked.error(line, format!("{name}: float atomics sum in no fixed order")));
        }
        match variable.space {
            AddressSpace::Storage { access } => {
                if access != (StorageAccess::LOAD | StorageAccess::STORE) {
                    faults.push(linked.error(line, format!("declare {name} `var<storage, read_write>`: slices of one buffer are bound side by side")));
                }
                if !source_line(line).contains("//") {
                    faults.push(
                        linked.error(line, format!("say the shape of {name} in a comment on its line")),
                    );
                }
            }
            AddressSpace::Uniform if !params_name(module, name) => {
                let what =
                    format!("name the uniform params, or params_ENTRY for one entry point, not {name}");
                faults.push(linked.error(line, what));
            }
            _ => {}
        }
    }
    for (handle, constant) in module.overrides.iter() {
        let name = constant.name.as_deref().unwrap_or("");
        let line = at(module.overrides.get_span(handle));
        faults.push(
            linked.error(line, format!("import {name} from package::spec: an override is in no interface")),
        );
    }
    let functions =
        module.functions.iter().map(|(_, f)| f).chain(module.entry_points.iter().map(|e| &e.function));
    for function in functions {
        for (handle, expression) in function.expressions.iter() {
            if let Some(message) = bad_expression(&function.expressions, expression) {
                faults.push(linked.error(at(function.expressions.get_span(handle)), message));
            }
        }
    }
    faults
}

fn float_atomic(module: &Module, ty: Handle<naga::Type>) -> bool {
    match &module.types[ty].inner {
        TypeInner::Atomic(scalar) => scalar.kind == ScalarKind::Float,
        TypeInner::Array { base, .. } => float_atomic(module, *base),
        TypeInner::Struct { members, .. } => members.iter().any(|m| float_atomic(module, m.ty)),
        _ => false,
    }
}

/// `params`, or `params_backward` for the params of one entry point that differ from those of the others.
fn params_name(module: &Module, name: &str) -> bool {
    let own = name.strip_prefix("params_");
    name == "params" || own.is_some_and(|entry| module.entry_points.iter().any(|e| e.name == entry))
}

fn bad_expression(all: &Arena<Expression>, expression: &Expression) -> Option<&'static str> {
    use naga::BinaryOperator::{Equal, NotEqual};
    match *expression {
        Expression::Binary { op: Equal | NotEqual, left, right } if same(all, left, right) => {
            Some("a value is compared with itself: drivers fold this; test the exponent bits (lib/finite)")
        }
        Expression::ArrayLength(_) => Some("bindings may be padded: pass the length in params"),
        Expression::As { expr, kind: ScalarKind::Float, convert: None } => match all[expr] {
            Expression::Literal(Literal::U32(bits)) if !f32::from_bits(bits).is_finite() => {
                Some("infinity and NaN have no portable constant: use a large finite number")
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether two expressions are written alike, so that they have one value.
fn same(all: &Arena<Expression>, a: Handle<Expression>, b: Handle<Expression>) -> bool {
    use Expression as E;
    if a == b {
        return true;
    }
    match (&all[a], &all[b]) {
        (E::Load { pointer: a }, E::Load { pointer: b }) => same(all, *a, *b),
        (E::Access { base: a, index: i }, E::Access { base: b, index: j }) => {
            same(all, *a, *b) && same(all, *i, *j)
        }
        (E::AccessIndex { base: a, index: i }, E::AccessIndex { base: b, index: j }) => {
            i == j && same(all, *a, *b)
        }
        (E::Binary { op: o, left: a, right: c }, E::Binary { op: p, left: b, right: d }) => {
            o == p && same(all, *a, *b) && same(all, *c, *d)
        }
        (E::Unary { op: o, expr: a }, E::Unary { op: p, expr: b }) => o == p && same(all, *a, *b),
        (E::FunctionArgument(i), E::FunctionArgument(j)) => i == j,
        (E::GlobalVariable(i), E::GlobalVariable(j)) => i == j,
        (E::LocalVariable(i), E::LocalVariable(j)) => i == j,
        (E::Constant(i), E::Constant(j)) => i == j,
        (E::Literal(i), E::Literal(j)) => i == j,
        _ => false,
    }
}

/// One entry point in the languages that drivers take.
#[derive(Clone, Debug)]
pub struct Translated {
    /// SPIR-V words, for Vulkan.
    pub spirv: Vec<u32>,
    /// Metal shading language.
    pub msl: String,
    /// HLSL, for DX12.
    pub hlsl: String,
    /// WGSL as written by naga, for browsers.
    pub wgsl: String,
}

fn translate(linked: &Linked, module: &Module, info: &ModuleInfo, entry: &str) -> Result<Translated> {
    use naga::back::{hlsl, msl, spv, wgsl};
    let stage = naga::ShaderStage::Compute;
    let fail = |language: &str, why: &dyn std::fmt::Display| {
        linked.error(1, format!("{entry} as {language}: {why}"))
    };

    let options = spv::PipelineOptions { shader_stage: stage, entry_point: entry.to_owned() };
    let spirv = spv::write_vec(module, info, &spv::Options::default(), Some(&options))
        .map_err(|e| fail("SPIR-V", &e))?;

    let options = msl::PipelineOptions { entry_point: Some((stage, entry.to_owned())), ..Default::default() };
    let (msl, _) =
        msl::write_string(module, info, &msl::Options::default(), &options).map_err(|e| fail("MSL", &e))?;

    let options = hlsl::PipelineOptions { entry_point: Some((stage, entry.to_owned())) };
    let mut hlsl = String::new();
    hlsl::Writer::new(&mut hlsl, &hlsl::Options::default(), &options)
        .write(module, info, None)
        .map_err(|e| fail("HLSL", &e))?;

    let wgsl = wgsl::write_string(module, info, wgsl::WriterFlags::empty()).map_err(|e| fail("WGSL", &e))?;
    if let Err(e) = naga::front::wgsl::parse_str(&wgsl) {
        return Err(fail("WGSL, read back", &e.message()));
    }
    Ok(Translated { spirv, msl, hlsl, wgsl })
}

/// An entry point of an embedded module in the languages that drivers take.
///
/// # Errors
/// [`Error::Shader`] if the module does not link or a writer refuses it.
pub fn translated(module: &str, entry: &str, spec: &[(&'static str, u32)]) -> Result<Translated> {
    let parsed = super::parsed(module, spec)?;
    translate(&parsed.linked, &parsed.module, &parsed.info, entry)
}
