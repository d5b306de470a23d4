//! A folder of images; its sub-folders, if it has any, are the classes.

use std::path::{Path, PathBuf};

use super::{IMAGES, Record, Source, fingerprint, is_image, stamp};
use crate::error::{Error, Result};

/// An image folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    files: Vec<(PathBuf, Option<u32>)>,
    classes: Vec<String>,
    fingerprint: u64,
}

impl Folder {
    /// Lists the images below `root`, sorted.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Data`] if there is no image.
    pub fn open(root: &Path) -> Result<Self> {
        let mut folders: Vec<PathBuf> = Vec::new();
        let mut files = Vec::new();
        let mut list =
            |folder: &Path, class: Option<u32>, folders: Option<&mut Vec<PathBuf>>| -> Result<()> {
                let mut found = Vec::new();
                let mut below = Vec::new();
                for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
                    let path = entry.map_err(|e| Error::io(folder, e))?.path();
                    if path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b".")) {
                        continue;
                    }
                    if path.is_dir() {
                        below.push(path);
                    } else if path.extension().and_then(|e| e.to_str()).is_some_and(is_image) {
                        found.push((path, class));
                    }
                }
                found.sort();
                below.sort();
                files.extend(found);
                if let Some(folders) = folders {
                    *folders = below;
                }
                Ok(())
            };
        list(root, None, Some(&mut folders))?;
        for (class, folder) in folders.iter().enumerate() {
            list(folder, Some(class as u32), None)?;
        }
        if files.is_empty() {
            let what = format!("holds no .tar shard and no image ({})", IMAGES.join(", "));
            return Err(Error::data(root, what));
        }
        let classes = folders
            .iter()
            .map(|f| f.file_name().unwrap_or_default().to_string_lossy().into_owned())
            .collect();
        let stamps = files
            .iter()
            .map(|(path, _)| stamp(path).map(|(size, time)| (path.clone(), size, time)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Folder { root: root.to_path_buf(), fingerprint: fingerprint(&stamps), files, classes })
    }
}

impl Source for Folder {
    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn record(&self, index: u64) -> Result<Record> {
        let (path, class) = &self.files[index as usize];
        let image = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let caption = std::fs::read_to_string(path.with_extension("txt")).ok();
        Ok(Record { name: path.display().to_string(), image, class: *class, caption })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn describe(&self) -> String {
        format!("{} images in {}", self.files.len(), self.root.display())
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}
