// Reductions of the stand-in, in the native library's numbering of types and operations.
#pragma once

#include <cstddef>
#include <string>

namespace standin {

// Bytes of one element; 0 when the library has no such type.
std::size_t element_bytes(int datatype);

// result[count] = contributions combined in rank order; contribution r starts at r * count elements.
void combine(const char* contributions, int ranks, std::size_t count, int datatype, int op, char* result);

// The same in the words of Isthmus' table, with the types that the native library lacks. Aborts on others.
std::size_t element_bytes(const std::string& datatype);
void combine(const char* contributions, int ranks, std::size_t count, const std::string& datatype,
             const std::string& op, char* result);

}  // namespace standin
