//! Values as the bytes that programs and user space exchange. The structures are generated (`layouts.rs`).

/// A value that is exchanged as bytes. Both directions take as many bytes as the C type has.
pub trait Plain {
    /// Reads the value.
    fn read(bytes: &[u8]) -> Self;

    /// Writes the value. Padding bytes are left unchanged.
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
        impl Plain for $integer {
            fn read(bytes: &[u8]) -> Self {
                $integer::from_ne_bytes(bytes.try_into().expect("the bytes of one integer"))
            }

            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 }

impl<T: Plain, const N: usize> Plain for [T; N] {
    fn read(bytes: &[u8]) -> Self {
        let each = bytes.len() / N;
        std::array::from_fn(|at| T::read(&bytes[at * each..(at + 1) * each]))
    }

    fn write(&self, bytes: &mut [u8]) {
        let each = bytes.len() / N;
        self.iter().zip(bytes.chunks_exact_mut(each)).for_each(|(one, bytes)| one.write(bytes));
    }
}
