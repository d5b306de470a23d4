//! The linker: modules joined into one WGSL text, by WESL's import lines.
//!
//! A file may start with lines `import package::lib::index::{index_group};`. Linking is depth first, each module
//! once, plain concatenation: WGSL does not care about the order of declarations. Nothing is renamed, so names at
//! module scope are unique over everything that is linked together. `package::spec` is the virtual module of the
//! constants that a dispatch supplies.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};

static MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// Names of all embedded modules, e.g. `ops/gelu`.
pub fn modules() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|(name, _)| *name)
}

/// Source text of an embedded module.
pub fn source(module: &str) -> Option<&'static str> {
    MODULES.iter().find(|(name, _)| *name == module).map(|(_, text)| *text)
}

/// Where a line of linked text came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineOrigin {
    /// Module, or `spec`.
    pub module: String,
    /// Line in the module's file, from 1.
    pub line: usize,
}

/// Linked text with the origin of every line.
#[derive(Clone, Debug)]
pub struct Linked {
    /// WGSL that naga and wgpu accept.
    pub text: String,
    /// Origin of each line of `text`.
    pub origins: Vec<LineOrigin>,
}

impl Linked {
    /// An error at a line of the linked text, from 1, as an error in its file.
    pub fn error(&self, line: usize, message: impl Into<String>) -> Error {
        let origin = self.origins.get(line.saturating_sub(1)).or(self.origins.last());
        let (file, line) = origin.map_or(("?".to_owned(), 0), |o| (format!("{}.wgsl", o.module), o.line));
        Error::Shader { file, line, message: message.into() }
    }
}

/// Links `module` with sources from `lookup`.
///
/// # Errors
/// [`Error::Shader`] with file and line: unknown module or name, cycle, name clash, a missing or unused
/// constant of `package::spec`.
pub fn link_with<'s>(
    module: &str,
    spec: &[(&'static str, u32)],
    lookup: &dyn Fn(&str) -> Option<&'s str>,
) -> Result<Linked> {
    let mut linker = Linker {
        lookup,
        spec,
        used: BTreeSet::new(),
        done: BTreeMap::new(),
        open: Vec::new(),
        out: Linked { text: String::new(), origins: Vec::new() },
    };
    linker.module(module, &LineOrigin { module: module.into(), line: 1 })?;
    for (name, value) in spec {
        if !linker.used.contains(name) {
            return Err(Error::Shader {
                file: format!("{module}.wgsl"),
                line: 1,
                message: format!("constant {name} is supplied but nothing imports package::spec::{{{name}}}"),
            });
        }
        linker.line(&format!("const {name}: u32 = {value}u;"), LineOrigin { module: "spec".into(), line: 1 });
    }
    let linked = linker.out;
    unique_names(&linked)?;
    Ok(linked)
}

struct Linker<'a, 's> {
    lookup: &'a dyn Fn(&str) -> Option<&'s str>,
    spec: &'a [(&'static str, u32)],
    used: BTreeSet<&'a str>,
    /// Finished modules with the names they declare.
    done: BTreeMap<String, BTreeSet<String>>,
    open: Vec<String>,
    out: Linked,
}

impl Linker<'_, '_> {
    fn line(&mut self, text: &str, origin: LineOrigin) {
        self.out.text.push_str(text);
        self.out.text.push('\n');
        self.out.origins.push(origin);
    }

    fn module(&mut self, name: &str, from: &LineOrigin) -> Result<()> {
        let fail = |at: &LineOrigin, message: String| {
            Err(Error::Shader { file: format!("{}.wgsl", at.module), line: at.line, message })
        };
        if self.done.contains_key(name) {
            return Ok(());
        }
        if self.open.iter().any(|m| m == name) {
            return fail(from, format!("import cycle: {} -> {name}", self.open.join(" -> ")));
        }
        let Some(text) = (self.lookup)(name) else {
            return fail(from, format!("there is no module {name}"));
        };
        self.open.push(name.to_owned());
        let mut body = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let at = LineOrigin { module: name.to_owned(), line: i + 1 };
            if !line.starts_with("import ") {
                body.push((line, at));
                continue;
            }
            let Some((path, names)) = parse_import(line) else {
                return fail(&at, "write `import package::folder::module::{name, other};`".into());
            };
            if path == "spec" {
                for wanted in names {
                    let Some((known, _)) = self.spec.iter().find(|(n, _)| *n == wanted) else {
                        return fail(&at, format!("constant {wanted} was not supplied"));
                    };
                    self.used.insert(known);
                }
            } else {
                self.module(&path, &at)?;
                if let Some(missing) = names.iter().find(|n| !self.done[&path].contains(**n)) {
                    return fail(&at, format!("{path}.wgsl declares no {missing}"));
                }
            }
        }
        let declared = body.iter().filter_map(|(line, _)| declared_name(line)).map(str::to_owned).collect();
        for (line, at) in body {
            self.line(line, at);
        }
        self.open.pop();
        self.done.insert(name.to_owned(), declared);
        Ok(())
    }
}

/// `import package::a::b::{x, y};` as (`a/b`, [x, y]).
fn parse_import(line: &str) -> Option<(String, Vec<&str>)> {
    let path = line.strip_prefix("import package::")?.trim_end().strip_suffix("};")?;
    let (module, names) = path.split_once("::{")?;
    Some((module.replace("::", "/"), names.split(',').map(str::trim).filter(|n| !n.is_empty()).collect()))
}

/// The name that a line declares at module scope (declarations start in column 0, attributes before them).
fn declared_name(line: &str) -> Option<&str> {
    let mut rest = line;
    if rest.starts_with(char::is_whitespace) {
        return None;
    }
    while let Some(attribute) = rest.strip_prefix('@') {
        let end = attribute.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(attribute.len());
        rest = attribute[end..].trim_start();
        if let Some(arguments) = rest.strip_prefix('(') {
            rest = arguments[arguments.find(')')? + 1..].trim_start();
        }
    }
    let (keyword, rest) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric() && c != '_')?);
    if !["fn", "struct", "const", "override", "var", "alias"].contains(&keyword) {
        return None;
    }
    let rest = if keyword == "var" && line.contains('<') { rest.split_once('>')?.1 } else { rest };
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then_some(&rest[..end])
}

fn unique_names(linked: &Linked) -> Result<()> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, line) in linked.text.lines().enumerate() {
        let Some(name) = declared_name(line) else { continue };
        if let Some(first) = seen.insert(name, i) {
            let first = &linked.origins[first];
            let what = format!("{name} is declared in {}.wgsl:{} already", first.module, first.line);
            return Err(linked.error(i + 1, what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(spec: &[(&'static str, u32)], files: &[(&str, &str)]) -> Result<Linked> {
        let lookup = |name: &str| files.iter().find(|(n, _)| *n == name).map(|(_, text)| *text);
        link_with(files[0].0, spec, &lookup)
    }

    /// File, line and message of a refusal.
    fn refusal(spec: &[(&'static str, u32)], files: &[(&str, &str)]) -> (String, usize, String) {
        match link(spec, files) {
            Err(Error::Shader { file, line, message }) => (file, line, message),
            other => panic!("{other:?}"),
        }
    }

    const BASE: (&str, &str) = ("lib/base", "// Base.\nfn base_one() -> f32 {\n    return 1.0;\n}\n");

    #[test]
    fn each_module_comes_once_and_keeps_its_lines() {
        let left =
            ("lib/left", "import package::lib::base::{base_one};\nfn left() -> f32 { return base_one(); }\n");
        let top = (
            "ops/top",
            "// Top.\nimport package::lib::left::{left};\nimport package::lib::base::{base_one};\nfn top() {}\n",
        );
        let linked = link(&[], &[top, left, BASE]).unwrap();
        assert_eq!(linked.text.matches("fn base_one").count(), 1);
        assert!(!linked.text.contains("import"));
        assert_eq!(linked.text.lines().count(), linked.origins.len());
        for (line, origin) in linked.text.lines().zip(&linked.origins) {
            let file = [top, left, BASE].into_iter().find(|f| f.0 == origin.module).unwrap();
            assert_eq!(file.1.lines().nth(origin.line - 1), Some(line));
        }
    }

    #[test]
    fn spec_constants_are_all_supplied_and_all_used() {
        let top = ("ops/top", "import package::spec::{TM};\nvar<private> rows: array<f32, TM>;\n");
        assert!(link(&[("TM", 4)], &[top]).unwrap().text.contains("const TM: u32 = 4u;"));
        let (file, line, message) = refusal(&[], &[top]);
        assert_eq!((file.as_str(), line), ("ops/top.wgsl", 1));
        assert!(message.contains("TM"), "{message}");
        let (_, _, message) = refusal(&[("TM", 4), ("TN", 2)], &[top]);
        assert!(message.contains("TN"), "{message}");
    }

    #[test]
    fn faulty_imports_are_refused_where_they_stand() {
        let cases = [
            ("// Head.\nimport package::lib::none::{x};\n", 2, "no module lib/none"),
            ("import package::lib::base::{base_two};\n", 1, "declares no base_two"),
            ("import package::lib::base;\n", 1, "write `import"),
            ("import lib::base::{base_one};\n", 1, "write `import"),
        ];
        for (text, at, what) in cases {
            let (file, line, message) = refusal(&[], &[("ops/top", text), BASE]);
            assert_eq!((file.as_str(), line), ("ops/top.wgsl", at), "{text}");
            assert!(message.contains(what), "{message}");
        }
        let a = ("lib/a", "import package::lib::b::{b};\nfn a() {}\n");
        let b = ("lib/b", "// B.\nimport package::lib::a::{a};\nfn b() {}\n");
        let (file, line, message) = refusal(&[], &[a, b]);
        assert_eq!((file.as_str(), line), ("lib/b.wgsl", 2));
        assert!(message.contains("cycle"), "{message}");
    }

    #[test]
    fn names_clash_over_modules_but_assertions_have_none() {
        let clashes = [
            "import package::lib::base::{base_one};\nfn base_one() {}\n",
            "import package::lib::base::{base_one};\n@must_use fn base_one() -> u32 { return 1u; }\n",
            "import package::lib::base::{base_one};\n@group(0) @binding(1) var<storage, read_write> base_one: array<f32>;\n",
        ];
        for text in clashes {
            let (file, line, message) = refusal(&[], &[("ops/top", text), BASE]);
            assert_eq!((file.as_str(), line), ("ops/top.wgsl", 2));
            assert!(message.contains("lib/base.wgsl:2"), "{message}");
        }
        let asserts = "const_assert 1u < 2u;\nconst_assert 1u < 3u;\n";
        assert!(link(&[], &[("ops/top", asserts)]).is_ok());
    }

    #[test]
    fn a_line_maps_back_to_its_file() {
        let top = ("ops/top", "import package::lib::base::{base_one};\nfn top() {\n    broken\n}\n");
        let linked = link(&[], &[top, BASE]).unwrap();
        let at = linked.text.lines().position(|l| l.contains("broken")).unwrap() + 1;
        match linked.error(at, "x") {
            Error::Shader { file, line, .. } => assert_eq!((file.as_str(), line), ("ops/top.wgsl", 3)),
            other => panic!("{other:?}"),
        }
    }
}
