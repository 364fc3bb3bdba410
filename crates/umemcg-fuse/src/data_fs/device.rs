//! Conversion of device numbers between the FUSE protocol and `makedev`.

/// Returns a device number packed into the kernel's 32 bits: 12 bits of major, 20 of minor.
pub(super) fn device_to_kernel(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Returns a device number unpacked from the kernel's 32 bits.
pub(super) fn device_from_kernel(device: u32) -> u64 {
    rustix::fs::makedev(device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xf_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(0, 0), (8, 1), (1, 3), (259, 70_000), (4095, 0xf_ffff)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(device_from_kernel(device_to_kernel(rdev)), rdev, "{major}:{minor}");
        }
        // /dev/null as the kernel writes it.
        assert_eq!(device_to_kernel(rustix::fs::makedev(1, 3)), 0x103);
    }
}
