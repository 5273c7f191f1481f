# Included by each project() of llama-cpp-python: only libllama is made, and as fast as a compiler can. Its tests run small
# models, and compare them with themselves.
set(CMAKE_C_FLAGS_RELEASE "-O0")
set(CMAKE_CXX_FLAGS_RELEASE "-O0")
set(GGML_LLAMAFILE OFF)
set(GGML_OPENMP OFF)
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
