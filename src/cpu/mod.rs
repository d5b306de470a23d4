//! The CPU engine: runs recordings on the twins, at f32 (fast, no driver needed) or f64 (the oracle).

use crate::error::{Error, Result};
use crate::kernel::{Args, Real, View};
use crate::record::{
    Command, DType, Dispatch, Engine, Layout, Program, Recording, Session, Slice, check_transfer,
};

/// A float type that the CPU engine can run: picks the twin of that precision.
pub trait TwinReal: Real {
    /// Calls the kernel's twin of this precision.
    fn call(dispatch: &Dispatch, args: &mut Args<'_, Self>);
}

impl TwinReal for f32 {
    fn call(dispatch: &Dispatch, args: &mut Args<'_, Self>) {
        (dispatch.kernel.f32)(args)
    }
}

impl TwinReal for f64 {
    fn call(dispatch: &Dispatch, args: &mut Args<'_, Self>) {
        (dispatch.kernel.f64)(args)
    }
}

/// The CPU engine at `f32` (for work) or `f64` (for oracles).
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuEngine<F = f32>(std::marker::PhantomData<F>);

impl<F: TwinReal> CpuEngine<F> {
    /// The engine. Needs no device and cannot fail.
    pub fn new() -> Self {
        CpuEngine(std::marker::PhantomData)
    }

    /// Like [`Engine::open`], with the concrete session (for f64 reads and writes).
    pub fn session(&self, layout: &Layout) -> CpuSession<F> {
        let buffers = layout
            .buffers()
            .iter()
            .map(|b| match b.dtype {
                DType::F32 => Memory::Float(vec![F::zero(); b.len]),
                DType::U32 => Memory::Uint(vec![0; b.len]),
            })
            .collect();
        CpuSession { buffers, programs: Vec::new() }
    }
}

impl<F: TwinReal> Engine for CpuEngine<F> {
    fn describe(&self) -> String {
        let bits = 8 * size_of::<F>();
        format!("cpu (f{bits}, {} threads)", rayon::current_num_threads())
    }

    fn max_buffer_bytes(&self) -> u64 {
        u64::MAX
    }

    fn max_binding_bytes(&self) -> u64 {
        u64::MAX
    }

    fn open(&self, layout: &Layout) -> Result<Box<dyn Session>> {
        Ok(Box::new(self.session(layout)))
    }
}

enum Memory<F> {
    Float(Vec<F>),
    Uint(Vec<u32>),
}

/// Host memory of one layout.
pub struct CpuSession<F = f32> {
    buffers: Vec<Memory<F>>,
    programs: Vec<Recording>,
}

impl<F: TwinReal> CpuSession<F> {
    /// Writes at full precision.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub fn write_real(&mut self, to: Slice, data: &[F]) -> Result<()> {
        check_transfer(to, DType::F32, data.len())?;
        self.float(to).copy_from_slice(data);
        Ok(())
    }

    /// Reads at full precision.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_real(&mut self, from: Slice) -> Result<Vec<F>> {
        check_transfer(from, DType::F32, from.len)?;
        Ok(self.float(from).to_vec())
    }

    fn float(&mut self, slice: Slice) -> &mut [F] {
        match &mut self.buffers[slice.buffer] {
            Memory::Float(x) => &mut x[slice.offset..slice.offset + slice.len],
            Memory::Uint(_) => unreachable!("types are checked when recording"),
        }
    }

    fn uint(&mut self, slice: Slice) -> &mut [u32] {
        match &mut self.buffers[slice.buffer] {
            Memory::Uint(x) => &mut x[slice.offset..slice.offset + slice.len],
            Memory::Float(_) => unreachable!("types are checked when recording"),
        }
    }

    fn check_range(&self, slice: Slice) -> Result<()> {
        let (len, dtype) = match self.buffers.get(slice.buffer) {
            Some(Memory::Float(x)) => (x.len(), DType::F32),
            Some(Memory::Uint(x)) => (x.len(), DType::U32),
            None => return Err(Error::kernel("session", format!("{slice:?} is not in this layout"))),
        };
        if slice.offset + slice.len > len || slice.dtype != dtype {
            return Err(Error::kernel("session", format!("{slice:?} leaves its buffer of {len} {dtype:?}")));
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &Dispatch) {
        let views = dispatch.bindings.iter().map(|(name, slice)| (*name, self.view(*slice))).collect();
        F::call(dispatch, &mut Args::new(dispatch.kernel, &dispatch.params, views));
    }

    /// A view with the lifetime of the dispatch.
    fn view<'a>(&mut self, slice: Slice) -> View<'a, F> {
        // SAFETY: `prepare` checked that the slice lies inside its buffer, and buffers neither move nor grow
        // while the session lives. Recording refused any two overlapping bindings of a dispatch, so the views
        // of one call are disjoint; they end with the call, before any other access to the session.
        unsafe {
            match slice.dtype {
                DType::F32 => {
                    let x = self.float(slice);
                    View::Float(std::slice::from_raw_parts_mut(x.as_mut_ptr(), x.len()))
                }
                DType::U32 => {
                    let x = self.uint(slice);
                    View::Uint(std::slice::from_raw_parts_mut(x.as_mut_ptr(), x.len()))
                }
            }
        }
    }

    fn copy(&mut self, from: Slice, to: Slice) {
        match from.dtype {
            DType::F32 if from.buffer == to.buffer => {
                let start = from.offset;
                if let Memory::Float(x) = &mut self.buffers[from.buffer] {
                    x.copy_within(start..start + from.len, to.offset);
                }
            }
            DType::F32 => {
                let [a, b] = self.buffers.get_disjoint_mut([from.buffer, to.buffer]).expect("two buffers");
                if let (Memory::Float(a), Memory::Float(b)) = (a, b) {
                    b[to.offset..to.offset + to.len].copy_from_slice(&a[from.offset..from.offset + from.len]);
                }
            }
            DType::U32 => {
                let data = self.uint(from).to_vec();
                self.uint(to).copy_from_slice(&data);
            }
        }
    }
}

impl<F: TwinReal> Session for CpuSession<F> {
    fn prepare(&mut self, recording: &Recording) -> Result<Program> {
        for command in recording.commands() {
            match command {
                Command::Dispatch(d) => d.bindings.iter().try_for_each(|(_, s)| self.check_range(*s))?,
                Command::Copy { from, to } => {
                    self.check_range(*from)?;
                    self.check_range(*to)?;
                }
                Command::Clear(slice) => self.check_range(*slice)?,
            }
        }
        self.programs.push(recording.clone());
        Ok(Program(self.programs.len() - 1))
    }

    fn run(&mut self, program: Program) -> Result<()> {
        let recording = std::mem::take(&mut self.programs[program.0]);
        for command in recording.commands() {
            match command {
                Command::Dispatch(d) => self.dispatch(d),
                Command::Copy { from, to } => self.copy(*from, *to),
                Command::Clear(slice) => match slice.dtype {
                    DType::F32 => self.float(*slice).fill(F::zero()),
                    DType::U32 => self.uint(*slice).fill(0),
                },
            }
        }
        self.programs[program.0] = recording;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn write(&mut self, to: Slice, data: &[f32]) -> Result<()> {
        check_transfer(to, DType::F32, data.len())?;
        self.check_range(to)?;
        for (x, &d) in self.float(to).iter_mut().zip(data) {
            *x = F::of(d as f64);
        }
        Ok(())
    }

    fn write_u32(&mut self, to: Slice, data: &[u32]) -> Result<()> {
        check_transfer(to, DType::U32, data.len())?;
        self.check_range(to)?;
        self.uint(to).copy_from_slice(data);
        Ok(())
    }

    fn read(&mut self, from: Slice) -> Result<Vec<f32>> {
        check_transfer(from, DType::F32, from.len)?;
        self.check_range(from)?;
        Ok(self.float(from).iter().map(|x| x.as_f64() as f32).collect())
    }

    fn read_u32(&mut self, from: Slice) -> Result<Vec<u32>> {
        check_transfer(from, DType::U32, from.len)?;
        self.check_range(from)?;
        Ok(self.uint(from).to_vec())
    }
}
