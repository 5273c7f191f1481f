"""The external linker of SGLang's radix cache: looks up, loads and offloads pages of the GPU pools."""
