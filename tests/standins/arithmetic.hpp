// Reductions of the stand-ins, with the native library's numbers for types and operations.
#pragma once

#include <cstddef>
#include <string>

namespace standin {

// Bytes of one element; 0 if the library has no such type.
std::size_t element_bytes(int datatype);

// result[count] = contributions combined in rank order. Contribution r starts at element r * count.
void combine(const char* contributions, int ranks, std::size_t count, int datatype, int op, char* result);

// Variants that take Isthmus names, including the types that the native library lacks. They
// abort on other names.
std::size_t element_bytes(const std::string& datatype);
void combine(const char* contributions, int ranks, std::size_t count, const std::string& datatype,
             const std::string& op, char* result);

}  // namespace standin
