//! What a pickle of PyTorch may hold, and the names that may occur in it.

/// Row of a value in [`Pickle::nodes`].
pub type Id = usize;

/// Most axes of a tensor; PyTorch's own limit is 64.
pub const MAX_RANK: usize = 64;

/// How a storage's bytes are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float of IEEE 754.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 64-bit integer.
    I64,
    /// 32-bit integer.
    I32,
    /// 16-bit integer.
    I16,
    /// 8-bit integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, zero or not.
    Bool,
}

/// Storage classes of `torch`, each with its element type.
const STORAGES: [(&str, Element); 10] = [
    ("DoubleStorage", Element::F64),
    ("FloatStorage", Element::F32),
    ("HalfStorage", Element::F16),
    ("BFloat16Storage", Element::Bf16),
    ("LongStorage", Element::I64),
    ("IntStorage", Element::I32),
    ("ShortStorage", Element::I16),
    ("CharStorage", Element::I8),
    ("ByteStorage", Element::U8),
    ("BoolStorage", Element::Bool),
];

/// Element types as they stand in settings that are saved beside the weights.
const DTYPES: [&str; 10] =
    ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];

/// A name that may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`.
    RebuildParameter,
    /// A storage class of `torch`.
    Storage(Element),
    /// `argparse.Namespace`: the settings of a training run, not looked into.
    Namespace,
    /// An element type of `torch`.
    Dtype,
}

/// Looks a name up.
///
/// # Errors
/// The name, if it is not in the list.
pub fn global(module: &str, name: &str) -> Result<Global, String> {
    let known = match (module, name) {
        ("collections", "OrderedDict") => Some(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Some(Global::RebuildParameter),
        ("argparse", "Namespace") => Some(Global::Namespace),
        ("torch", name) if DTYPES.contains(&name) => Some(Global::Dtype),
        ("torch", name) => STORAGES.iter().find(|(n, _)| *n == name).map(|(_, e)| Global::Storage(*e)),
        _ => None,
    };
    known.ok_or_else(|| {
        let name: String =
            format!("{module}.{name}").chars().take(200).flat_map(char::escape_debug).collect();
        format!(
            "asks for `{name}`: only tensors, dicts, lists, numbers and strings are read, and no code is run"
        )
    })
}

/// Bytes of a tensor in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// How to read them.
    pub element: Element,
    /// Name of the member under `data/`.
    pub key: String,
    /// Elements.
    pub len: u64,
}

/// A view into a storage, all numbers in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// Row of the [`Storage`].
    pub storage: Id,
    /// First element.
    pub offset: u64,
    /// Extents.
    pub size: Vec<u64>,
    /// Steps between neighbours along each axis.
    pub stride: Vec<u64>,
}

/// A value that a pickle built.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Id>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A dict, in its order; keys may repeat.
    Dict(Vec<(Id, Id)>),
    /// A name of the list.
    Global(Global),
    /// A storage.
    Storage(Storage),
    /// A tensor.
    Tensor(TensorRef),
    /// Something that holds no tensor and is not looked into: bytes, a longer integer, settings.
    Opaque,
}

/// All values of a pickle.
#[derive(Clone, Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

impl Pickle {
    /// All values, and the row of the one that the pickle is of.
    pub fn new(nodes: Vec<Node>, root: Id) -> Self {
        Pickle { nodes, root }
    }

    /// The value that the pickle is of.
    pub fn root(&self) -> Id {
        self.root
    }

    /// A value.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// A string value.
    pub fn text(&self, id: Id) -> Option<&str> {
        match &self.nodes[id] {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }
}
