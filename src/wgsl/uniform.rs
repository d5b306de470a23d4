//! Barriers in uniform control flow: every invocation of a workgroup must reach every barrier, or the GPU may hang
//! or give wrong sums. naga 30 does not look at this.
//!
//! A value is uniform if it is made of constants, params and workgroup ids. What comes from invocation ids, storage,
//! workgroup memory or atomics is not, nor is a variable that was ever given such a value or was written where
//! invocations may have parted. This is stricter than WGSL's own analysis, and simpler.

use std::collections::{BTreeMap, BTreeSet};

use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Span,
    Statement,
};

use super::link::Linked;
use crate::error::Error;

/// Barriers that not all invocations may reach, and returns before the last barrier.
pub fn uniform_barriers(linked: &Linked, module: &Module) -> Vec<Error> {
    let mut lint =
        Lint { module, linked, barriers: BTreeSet::new(), calls: BTreeMap::new(), faults: BTreeSet::new() };
    // Functions are declared before those that call them.
    for (handle, function) in module.functions.iter() {
        if lint.has_barrier(&function.body) {
            lint.barriers.insert(handle);
        }
    }
    for (_, function) in module.functions.iter() {
        lint.returns(function);
    }
    for entry in &module.entry_points {
        lint.returns(&entry.function);
        let arguments: Vec<bool> = entry
            .function
            .arguments
            .iter()
            .map(|a| {
                let uniform = [BuiltIn::WorkGroupId, BuiltIn::NumWorkGroups, BuiltIn::WorkGroupSize];
                !matches!(a.binding, Some(Binding::BuiltIn(b)) if uniform.contains(&b))
            })
            .collect();
        lint.function(&entry.function, &arguments);
    }
    lint.faults.into_iter().map(|(line, message)| linked.error(line, message)).collect()
}

struct Lint<'a> {
    module: &'a Module,
    linked: &'a Linked,
    /// Functions that reach a barrier.
    barriers: BTreeSet<Handle<Function>>,
    /// Results of calls by the arguments that vary.
    calls: BTreeMap<(Handle<Function>, Vec<bool>), bool>,
    /// By line: a helper is analysed once for each way to call it.
    faults: BTreeSet<(usize, String)>,
}

/// What is known of a function's values while it is analysed. Entries are only ever added.
#[derive(Default)]
struct Varying {
    locals: BTreeSet<Handle<LocalVariable>>,
    calls: BTreeSet<Handle<Expression>>,
    /// Bodies of loops and cases, by address, that invocations may leave at different places.
    left: BTreeSet<*const Block>,
    returns: bool,
}

impl Varying {
    fn size(&self) -> usize {
        self.locals.len() + self.calls.len() + self.left.len()
    }
}

/// The blocks that `break` and `continue` leave.
#[derive(Clone, Copy, Default)]
struct Exits {
    breaks: Option<*const Block>,
    continues: Option<*const Block>,
}

struct Scope<'f> {
    function: &'f Function,
    arguments: Vec<bool>,
    varying: Varying,
    report: bool,
}

impl<'a> Lint<'a> {
    fn fault(&mut self, span: Span, message: impl Into<String>) {
        let line = span.location(&self.linked.text).line_number as usize;
        self.faults.insert((line, message.into()));
    }

    fn has_barrier(&self, block: &Block) -> bool {
        block.iter().any(|statement| match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => true,
            Statement::Call { function, .. } => self.barriers.contains(function),
            other => children(other).into_iter().any(|b| self.has_barrier(b)),
        })
    }

    /// Reports returns that stand before a barrier of the same function.
    fn returns(&mut self, function: &Function) {
        let mut seen = Vec::new();
        let mut early = Vec::new();
        self.order(&function.body, &mut seen, &mut early);
        for span in early {
            self.fault(span, "return before the last barrier: mask loads and stores instead");
        }
    }

    /// Moves returns that a barrier follows from `seen` to `early`.
    fn order(&self, block: &Block, seen: &mut Vec<Span>, early: &mut Vec<Span>) {
        for (statement, span) in block.span_iter() {
            match statement {
                Statement::Return { .. } => seen.push(*span),
                Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => early.append(seen),
                Statement::Call { function, .. } if self.barriers.contains(function) => early.append(seen),
                Statement::Loop { body, continuing, .. } => {
                    // The barrier may come in the next round.
                    let before = seen.len();
                    self.order(body, seen, early);
                    self.order(continuing, seen, early);
                    if self.has_barrier(body) || self.has_barrier(continuing) {
                        early.extend(seen.drain(before.min(seen.len())..));
                    }
                }
                other => children(other).into_iter().for_each(|b| self.order(b, seen, early)),
            }
        }
    }

    /// Analyses a function called by all invocations together, with arguments that vary or not. Returns whether
    /// its result varies.
    fn function(&mut self, function: &'a Function, arguments: &[bool]) -> bool {
        let mut scope =
            Scope { function, arguments: arguments.to_vec(), varying: Varying::default(), report: false };
        // Each round may find more that varies; the last one reports.
        loop {
            let before = scope.varying.size();
            self.block(&mut scope, &function.body, false, Exits::default());
            if scope.varying.size() == before {
                break;
            }
        }
        scope.report = true;
        self.block(&mut scope, &function.body, false, Exits::default());
        scope.varying.returns
    }

    /// Whether the result of a call varies. What a callee does where invocations have parted was reported at the
    /// call.
    fn call(&mut self, function: Handle<Function>, arguments: &[bool]) -> bool {
        if let Some(known) = self.calls.get(&(function, arguments.to_vec())) {
            return *known;
        }
        let varies = self.function(&self.module.functions[function], arguments);
        self.calls.insert((function, arguments.to_vec()), varies);
        varies
    }

    /// Walks a block; `exits` are the blocks that it may leave early.
    fn block(&mut self, scope: &mut Scope<'a>, block: &'a Block, parted: bool, exits: Exits) {
        for (statement, span) in block.span_iter() {
            let left = |e: Option<*const Block>| e.is_some_and(|b| scope.varying.left.contains(&b));
            let parted = parted || left(exits.breaks) || left(exits.continues);
            match statement {
                Statement::Block(body) => self.block(scope, body, parted, exits),
                Statement::If { condition, accept, reject } => {
                    let parted = parted || self.varies(scope, *condition);
                    self.block(scope, accept, parted, exits);
                    self.block(scope, reject, parted, exits);
                }
                Statement::Switch { selector, cases } => {
                    let parted = parted || self.varies(scope, *selector);
                    for case in cases {
                        let exits = Exits { breaks: Some(&raw const case.body), ..exits };
                        self.block(scope, &case.body, parted, exits);
                    }
                }
                Statement::Loop { body, continuing, break_if } => {
                    let this = Some(&raw const *body);
                    let exits = Exits { breaks: this, continues: this };
                    self.block(scope, body, parted, exits);
                    self.block(scope, continuing, parted, exits);
                    if break_if.is_some_and(|c| self.varies(scope, c)) {
                        scope.varying.left.insert(body);
                    }
                }
                Statement::Break if parted => scope.varying.left.extend(exits.breaks),
                Statement::Continue if parted => scope.varying.left.extend(exits.continues),
                Statement::Return { value } => {
                    scope.varying.returns |= parted || value.is_some_and(|v| self.varies(scope, v));
                }
                Statement::Store { pointer, value } => {
                    let varies = parted || self.varies(scope, *value) || self.varies(scope, *pointer);
                    if let Some(local) = root_local(scope.function, *pointer).filter(|_| varies) {
                        scope.varying.locals.insert(local);
                    }
                }
                Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. }
                    if parted && scope.report =>
                {
                    self.fault(
                        *span,
                        "barrier where invocations may have parted: make its conditions uniform",
                    );
                }
                Statement::Call { function, arguments, result } => {
                    if parted && scope.report && self.barriers.contains(function) {
                        self.fault(
                            *span,
                            "call of a function with a barrier where invocations may have parted",
                        );
                    }
                    // Through a pointer the callee may write anything, and see what it wrote.
                    let passed: Vec<_> = arguments.iter().map(|a| root_local(scope.function, *a)).collect();
                    let varies: Vec<bool> = (arguments.iter().zip(&passed))
                        .map(|(a, pointer)| pointer.is_some() || self.varies(scope, *a))
                        .collect();
                    scope.varying.locals.extend(passed.into_iter().flatten());
                    if self.call(*function, &varies)
                        && let Some(result) = result
                    {
                        scope.varying.calls.insert(*result);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether invocations may have different values of an expression (for a pointer: different addresses, or
    /// different contents where it points).
    fn varies(&self, scope: &Scope<'a>, expression: Handle<Expression>) -> bool {
        use Expression as E;
        let any = |list: &[Handle<Expression>]| list.iter().any(|e| self.varies(scope, *e));
        match &scope.function.expressions[expression] {
            E::Literal(_) | E::Constant(_) | E::Override(_) | E::ZeroValue(_) => false,
            E::WorkGroupUniformLoadResult { .. } | E::ArrayLength(_) => false,
            E::FunctionArgument(i) => scope.arguments.get(*i as usize).copied().unwrap_or(true),
            E::GlobalVariable(g) => self.module.global_variables[*g].space != AddressSpace::Uniform,
            E::LocalVariable(l) => scope.varying.locals.contains(l),
            E::CallResult(_) => scope.varying.calls.contains(&expression),
            E::Load { pointer } => any(&[*pointer]),
            E::Compose { components, .. } => any(components),
            E::Access { base, index } => any(&[*base, *index]),
            E::AccessIndex { base, .. } => any(&[*base]),
            E::Splat { value, .. } => any(&[*value]),
            E::Swizzle { vector, .. } => any(&[*vector]),
            E::Unary { expr, .. } | E::As { expr, .. } => any(&[*expr]),
            E::Binary { left, right, .. } => any(&[*left, *right]),
            E::Select { condition, accept, reject } => any(&[*condition, *accept, *reject]),
            E::Relational { argument, .. } => any(&[*argument]),
            E::Math { arg, arg1, arg2, arg3, .. } => {
                any(&[*arg]) || [arg1, arg2, arg3].into_iter().flatten().any(|e| any(&[*e]))
            }
            // Atomics, subgroup operations, derivatives, textures.
            _ => true,
        }
    }
}

fn root_local(function: &Function, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    match function.expressions[pointer] {
        Expression::LocalVariable(local) => Some(local),
        Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => root_local(function, base),
        _ => None,
    }
}

fn children(statement: &Statement) -> Vec<&Block> {
    match statement {
        Statement::Block(block) => vec![block],
        Statement::If { accept, reject, .. } => vec![accept, reject],
        Statement::Switch { cases, .. } => cases.iter().map(|c| &c.body).collect(),
        Statement::Loop { body, continuing, .. } => vec![body, continuing],
        _ => Vec::new(),
    }
}
