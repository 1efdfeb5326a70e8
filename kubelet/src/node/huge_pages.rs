//! The sizes of the machine's huge pages, and how they are named.

use std::fs;
use std::path::Path;

use kube_controller_manager::objects::{Format, Quantity};

/// Has a folder for each size.
const FOLDER: &str = "/sys/kernel/mm/hugepages";
/// What the resources of huge pages begin with.
const RESOURCE: &str = "hugepages-";

/// A size of huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// As cgroups name it: `2MB`.
    pub name: String,
    /// The size of one page.
    pub bytes: i64,
    /// The bytes of all pages that the machine has set aside.
    pub capacity: i64,
}

impl PageSize {
    /// Returns the sizes of the machine's huge pages. Blocks. Upstream: `HugePageSizes`.
    pub fn detect() -> Vec<PageSize> {
        PageSize::below(Path::new(FOLDER))
    }

    /// Reads the sizes of pages below `folder`; empty without the folder.
    fn below(folder: &Path) -> Vec<PageSize> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let size = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let kib = name.strip_prefix(RESOURCE)?.strip_suffix("kB")?;
            let bytes = kib.parse::<i64>().ok()?.checked_mul(1024)?;
            let pages = fs::read_to_string(entry.path().join("nr_hugepages")).unwrap_or_default();
            let pages: i64 = pages.trim().parse().unwrap_or_default();
            Some(PageSize { name: name_of(bytes), bytes, capacity: pages.saturating_mul(bytes) })
        };
        let mut sizes: Vec<PageSize> = entries.filter_map(size).collect();
        sizes.sort_by_key(|size| size.bytes);
        sizes
    }
}

/// Formats a page size with the largest unit that divides it. Upstream:
/// `HugePageUnitSizeFromByteSize`.
fn name_of(bytes: i64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let (mut size, mut unit) = (bytes, 0);
    while size > 0 && size % 1024 == 0 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", units[unit])
}

/// Returns the size of a page in bytes, of a resource such as `hugepages-2Mi`; `None`: it is
/// another resource.
pub fn size_of(resource: &str) -> Option<i64> {
    let size: Quantity = resource.strip_prefix(RESOURCE)?.parse().ok()?;
    Some(size.value())
}

/// Returns the resource of pages of a size: `hugepages-2Mi`. Upstream: `HugePageResourceName`.
pub fn resource(bytes: i64) -> String {
    format!("{RESOURCE}{}", Quantity::from_milli(bytes.saturating_mul(1000), Format::BinarySi))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_folder() {
        let folder = std::env::temp_dir().join(format!("kubelet-pages-{}", std::process::id()));
        assert_eq!(PageSize::below(&folder), []);
        for (size, pages) in [("hugepages-1048576kB", "3\n"), ("hugepages-64kB", "0\n"), ("x", "")]
        {
            fs::create_dir_all(folder.join(size)).expect("a folder");
            fs::write(folder.join(size).join("nr_hugepages"), pages).expect("a file");
        }
        let size =
            |name: &str, bytes, capacity| PageSize { name: name.to_owned(), bytes, capacity };
        let expected = [size("64KB", 64 << 10, 0), size("1GB", 1 << 30, 3 << 30)];
        assert_eq!(PageSize::below(&folder), expected);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn resources_name_sizes() {
        for (resource, bytes, name) in [
            ("hugepages-2Mi", Some(2 << 20), "2MB"),
            ("hugepages-1Gi", Some(1 << 30), "1GB"),
            ("hugepages-1", Some(1), "1B"),
            ("hugepages-64Ki", Some(64 << 10), "64KB"),
            ("hugepages-1536Ki", Some(1536 << 10), "1536KB"),
            ("hugepages-x", None, ""),
            ("memory", None, ""),
        ] {
            assert_eq!(size_of(resource), bytes, "{resource}");
            assert_eq!(bytes.map_or(String::new(), name_of), name, "{resource}");
            if let Some(bytes) = bytes {
                assert_eq!(super::resource(bytes), resource);
            }
        }
    }
}
