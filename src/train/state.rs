//! The resume state of a run: parameters, optimiser, step and key, in a folder of mode 0700.
//!
//! Noise is a function of key and step. A step may be repeated after a crash only on the same examples under the same
//! recipe: otherwise one noise would hide two different sums, and their difference would be bare. So the state names
//! recipe and data, and a run that differs in either is refused.

use std::path::{Path, PathBuf};

use super::stepper::Stepper;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
#[cfg(not(unix))]
use crate::files::write_atomic;
use crate::rng::Key;

/// The folder `state` in a run's output folder.
#[derive(Clone, Debug)]
pub struct State {
    folder: PathBuf,
}

impl State {
    /// The state below an output folder. Nothing is created yet.
    pub fn new(out: &Path) -> Self {
        State { folder: out.join("state") }
    }

    fn key_path(&self) -> PathBuf {
        self.folder.join("key")
    }

    fn tensors_path(&self) -> PathBuf {
        self.folder.join("state.safetensors")
    }

    /// Whether a run can be resumed from here.
    pub fn exists(&self) -> bool {
        self.tensors_path().exists()
    }

    /// Starts a new run: stores its key, readable by its owner alone, and removes an older state.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(&self, key: &Key) -> Result<()> {
        create_private_folder(&self.folder)?;
        let _ = std::fs::remove_file(self.tensors_path());
        let path = self.key_path();
        let _ = std::fs::remove_file(&path);
        write_private(&path, key.expose())
    }

    /// The key of the run.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is gone or damaged: without it a private run cannot go on.
    pub fn key(&self) -> Result<Key> {
        let path = self.key_path();
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        let bytes = bytes.try_into().map_err(|_| {
            Error::checkpoint(&path, "is damaged; a run cannot be resumed with another key, start it anew")
        })?;
        Ok(Key::from_bytes(bytes))
    }

    /// Saves parameters and optimiser after `step` steps.
    ///
    /// # Errors
    /// [`Error::Io`]; the state before stays.
    pub fn save(&self, stepper: &mut Stepper, step: u64, identity: &Identity) -> Result<()> {
        let mut checkpoint = stepper.save(true)?;
        checkpoint.metadata.insert("step".into(), step.to_string());
        checkpoint.metadata.insert("recipe".into(), identity.recipe.clone());
        checkpoint.metadata.insert("data".into(), identity.data.clone());
        checkpoint.write(&self.tensors_path())
    }

    /// Loads parameters and optimiser; returns the number of steps done.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the state is of another recipe or other data.
    pub fn load(&self, stepper: &mut Stepper, identity: &Identity) -> Result<u64> {
        let path = self.tensors_path();
        let file = Checkpoint::read(&path)?;
        let meta = |name: &str| file.metadata.get(name).map(String::as_str).unwrap_or("");
        for (name, ours) in [("recipe", &identity.recipe), ("data", &identity.data)] {
            if meta(name) != ours {
                let what = format!(
                    "is of another {name}; its noise must not be used with this one. Start anew in another --out folder"
                );
                return Err(Error::checkpoint(&path, what));
            }
        }
        let step = meta("step").parse().map_err(|_| Error::checkpoint(&path, "names no step"))?;
        stepper.load(&file, &path, true)?;
        Ok(step)
    }
}

/// What a state belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The recipe as run, as TOML.
    pub recipe: String,
    /// Number of examples and fingerprint of the data.
    pub data: String,
}

fn create_private_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::io(path, e))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path, mode).map_err(|e| Error::io(path, e))?;
    }
    Ok(())
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    #[cfg(unix)]
    {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| Error::io(path, e))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| Error::io(path, e))
    }
    #[cfg(not(unix))]
    write_atomic(path, bytes)
}
