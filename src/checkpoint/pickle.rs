//! A reader of Python's pickles that runs nothing.
//!
//! A pickle is a program for a small stack machine whose `GLOBAL` and `REDUCE` call any function of any installed Python
//! module. Here a name is looked up in a short list and everything else is refused by its name. What a pickle builds
//! lies in one table and refers to other rows by number, so that nothing recurses, however deep the nesting, and
//! nothing grows beyond a constant times the pickle's length.

use std::collections::HashMap;

use super::opcode as op;
use super::value::{Global, Id, MAX_RANK, Node, Pickle, Storage, TensorRef, global};

/// Runs a pickle's instructions.
///
/// # Errors
/// What is wrong with it, with the name or instruction that is refused.
pub fn parse(bytes: &[u8]) -> Result<Pickle, String> {
    Machine { bytes, at: 0, nodes: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }
        .run()
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

type Step<T = ()> = Result<T, String>;

impl Machine<'_> {
    fn run(mut self) -> Step<Pickle> {
        loop {
            let at = self.at;
            let code = self.byte()?;
            if code == op::STOP {
                let root = self.pop()?;
                return Ok(Pickle::new(self.nodes, root));
            }
            self.step(code).map_err(|what| format!("{what} (byte {at} of its pickle)"))?;
        }
    }

    fn step(&mut self, code: u8) -> Step {
        match code {
            op::PROTO => match self.byte()? {
                0..=5 => {}
                version => return Err(format!("is of pickle protocol {version}, known are 0 to 5")),
            },
            op::FRAME => drop(self.take(8)?),
            op::MARK => self.marks.push(self.stack.len()),
            op::POP => match self.marks.last() {
                Some(&mark) if mark == self.stack.len() => drop(self.marks.pop()),
                _ => drop(self.pop()?),
            },
            op::POP_MARK => drop(self.pop_mark()?),
            op::DUP => {
                let top = self.top()?;
                self.stack.push(top);
            }
            op::NONE => self.push(Node::None),
            op::NEWTRUE => self.push(Node::Bool(true)),
            op::NEWFALSE => self.push(Node::Bool(false)),
            op::INT | op::LONG | op::FLOAT => self.text_number(code)?,
            op::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Node::Int(value.into()));
            }
            op::BININT1 => {
                let value = self.byte()?;
                self.push(Node::Int(value.into()));
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Node::Int(value.into()));
            }
            op::LONG1 => {
                let len = self.length(1)?;
                self.long(len)?;
            }
            op::LONG4 => {
                let len = self.length(4)?;
                self.long(len)?;
            }
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Node::Float(value));
            }
            op::STRING | op::UNICODE => {
                let line = self.line()?.trim_matches(['\'', '"']).to_owned();
                self.push(Node::Text(line));
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => self.string(1)?,
            op::BINUNICODE | op::BINSTRING => self.string(4)?,
            op::BINUNICODE8 => self.string(8)?,
            op::SHORT_BINBYTES => self.skip(1)?,
            op::BINBYTES => self.skip(4)?,
            op::BINBYTES8 | op::BYTEARRAY8 => self.skip(8)?,
            op::EMPTY_LIST => self.push(Node::List(Vec::new())),
            op::EMPTY_TUPLE => self.push(Node::Tuple(Vec::new())),
            op::EMPTY_DICT => self.push(Node::Dict(Vec::new())),
            op::LIST => {
                let items = self.pop_mark()?;
                self.push(Node::List(items));
            }
            op::TUPLE => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items));
            }
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::DICT => {
                let pairs = pairs(self.pop_mark()?)?;
                self.push(Node::Dict(pairs));
            }
            op::APPEND => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            op::APPENDS => {
                let items = self.pop_mark()?;
                self.extend(items)?;
            }
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![key, value])?;
            }
            op::SETITEMS => {
                let items = self.pop_mark()?;
                self.set(items)?;
            }
            op::GET | op::PUT => {
                let line = self.line()?;
                let slot = line.parse().map_err(|_| format!("has the memo number {line:?}"))?;
                self.memo(code == op::GET, slot)?;
            }
            op::BINGET | op::BINPUT => {
                let slot = self.byte()?.into();
                self.memo(code == op::BINGET, slot)?;
            }
            op::LONG_BINGET | op::LONG_BINPUT => {
                let slot = u32::from_le_bytes(self.array()?);
                self.memo(code == op::LONG_BINGET, slot)?;
            }
            op::MEMOIZE => self.memo(false, self.memo.len() as u32)?,
            op::GLOBAL | op::INST => {
                let module = self.line()?;
                let name = self.line()?;
                let known = global(&module, &name)?;
                if code == op::INST {
                    return Err(format!("makes an object of `{module}.{name}` in a way that is not read"));
                }
                self.push(Node::Global(known));
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.nodes[module], &self.nodes[name]) {
                    (Node::Text(module), Node::Text(name)) => {
                        let known = global(module, name)?;
                        self.push(Node::Global(known));
                    }
                    _ => return Err("has a global whose name is no string".into()),
                }
            }
            op::REDUCE | op::NEWOBJ => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                self.call(callee, arguments)?;
            }
            op::BUILD => {
                self.pop()?;
                let object = self.top()?;
                // Attributes of a dict (`_metadata` of a state dict) and of settings are nothing to us.
                if !matches!(self.nodes[object], Node::Dict(_) | Node::Opaque) {
                    return Err("sets the state of something that has none".into());
                }
            }
            op::BINPERSID => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(Node::Storage(storage));
            }
            _ => return Err(format!("uses {}, which is not read", op::name(code))),
        }
        Ok(())
    }

    /// The few calls that make something: their results, by our own code.
    fn call(&mut self, callee: Id, arguments: Id) -> Step {
        let (Node::Global(callee), Node::Tuple(arguments)) = (&self.nodes[callee], &self.nodes[arguments])
        else {
            return Err("calls something that is no function".into());
        };
        let made = match (callee, arguments.as_slice()) {
            (Global::OrderedDict, []) => Node::Dict(Vec::new()),
            (Global::Namespace, []) => Node::Opaque,
            (Global::RebuildParameter, [tensor, ..]) if matches!(self.nodes[*tensor], Node::Tensor(_)) => {
                self.stack.push(*tensor);
                return Ok(());
            }
            (Global::RebuildTensor, [storage, offset, size, stride, ..]) => {
                if !matches!(self.nodes[*storage], Node::Storage(_)) {
                    return Err("has a tensor without storage".into());
                }
                let tensor = TensorRef {
                    storage: *storage,
                    offset: self.number(*offset)?,
                    size: self.numbers(*size)?,
                    stride: self.numbers(*stride)?,
                };
                if tensor.size.len() != tensor.stride.len() {
                    return Err("has a tensor with other strides than extents".into());
                }
                Node::Tensor(tensor)
            }
            (known, _) => return Err(format!("calls {known:?} with arguments that are not read")),
        };
        self.push(made);
        Ok(())
    }

    /// `("storage", class, key, place, elements)`.
    fn storage(&self, id: Id) -> Step<Storage> {
        let fail = || "has a persistent id that is no storage".to_owned();
        let Node::Tuple(parts) = &self.nodes[id] else { return Err(fail()) };
        let [tag, class, key, _, len] = parts.as_slice() else { return Err(fail()) };
        match (&self.nodes[*tag], &self.nodes[*class], &self.nodes[*key]) {
            (Node::Text(tag), Node::Global(Global::Storage(element)), Node::Text(key))
                if tag == "storage" =>
            {
                Ok(Storage { element: *element, key: key.clone(), len: self.number(*len)? })
            }
            _ => Err(fail()),
        }
    }

    fn number(&self, id: Id) -> Step<u64> {
        match self.nodes[id] {
            Node::Int(n) => n.try_into().map_err(|_| format!("has an extent, stride or offset of {n}")),
            _ => Err("has an extent, stride or offset that is no integer".into()),
        }
    }

    fn numbers(&self, id: Id) -> Step<Vec<u64>> {
        match &self.nodes[id] {
            Node::Tuple(items) | Node::List(items) if items.len() <= MAX_RANK => {
                items.iter().map(|&i| self.number(i)).collect()
            }
            _ => Err(format!("has a tensor whose extents are no list of at most {MAX_RANK} numbers")),
        }
    }

    fn memo(&mut self, get: bool, slot: u32) -> Step {
        if get {
            let id =
                *self.memo.get(&slot).ok_or_else(|| format!("reads memo {slot} before it is written"))?;
            self.stack.push(id);
        } else {
            let top = self.top()?;
            self.memo.insert(slot, top);
        }
        Ok(())
    }

    fn extend(&mut self, items: Vec<Id>) -> Step {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(list) => list.extend(items),
            _ => return Err("appends to something that is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<Id>) -> Step {
        let (dict, new) = (self.top()?, pairs(items)?);
        match &mut self.nodes[dict] {
            Node::Dict(dict) => dict.extend(new),
            _ => return Err("sets items of something that is no dict".into()),
        }
        Ok(())
    }

    fn tuple(&mut self, len: usize) -> Step {
        let mut items = (0..len).map(|_| self.pop()).collect::<Step<Vec<_>>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn top(&self) -> Step<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&id) if self.stack.len() > floor => Ok(id),
            _ => Err("takes from an empty stack".into()),
        }
    }

    fn pop(&mut self) -> Step<Id> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("closes a mark that was not opened")?;
        Ok(self.stack.split_off(mark))
    }

    fn take(&mut self, len: usize) -> Step<&[u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("ends in the middle")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("N bytes"))
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A length of `width` bytes, little-endian; never trusted to allocate.
    fn length(&mut self, width: usize) -> Step<usize> {
        let mut whole = [0; 8];
        whole[..width].copy_from_slice(self.take(width)?);
        usize::try_from(u64::from_le_bytes(whole)).map_err(|_| "ends in the middle".into())
    }

    fn string(&mut self, width: usize) -> Step {
        let len = self.length(width)?;
        let text =
            std::str::from_utf8(self.take(len)?).map_err(|_| "has a string that is not UTF-8")?.to_owned();
        self.push(Node::Text(text));
        Ok(())
    }

    fn skip(&mut self, width: usize) -> Step {
        let len = self.length(width)?;
        self.take(len)?;
        self.push(Node::Opaque);
        Ok(())
    }

    fn long(&mut self, len: usize) -> Step {
        let bytes = self.take(len)?;
        let node = match len {
            0 => Node::Int(0),
            1..=8 => {
                let sign = if bytes[len - 1] & 0x80 == 0 { 0 } else { 0xff };
                let mut whole = [sign; 8];
                whole[..len].copy_from_slice(bytes);
                Node::Int(i64::from_le_bytes(whole))
            }
            _ => Node::Opaque,
        };
        self.push(node);
        Ok(())
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or("ends in the middle")?;
        let line = std::str::from_utf8(&rest[..len]).map_err(|_| "has a line that is not UTF-8")?.to_owned();
        self.at += len + 1;
        Ok(line)
    }

    fn text_number(&mut self, code: u8) -> Step {
        let line = self.line()?;
        let node = match (code, line.as_str()) {
            (op::INT, "00") => Some(Node::Bool(false)),
            (op::INT, "01") => Some(Node::Bool(true)),
            (op::FLOAT, text) => text.parse().ok().map(Node::Float),
            (_, text) => text.trim_end_matches('L').parse().ok().map(Node::Int),
        };
        self.push(node.ok_or_else(|| "has a line that is no number".to_owned())?);
        Ok(())
    }
}

fn pairs(items: Vec<Id>) -> Step<Vec<(Id, Id)>> {
    if !items.len().is_multiple_of(2) {
        return Err("has a key without a value".into());
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
