# Our headers have plain comments; Doxygen wants its own mark. The first block of a file is about the file.
1s|^//|/// \\file\n///|
# Headings of sections are no text of what follows.
/^ *\/\/ ----/d
s|^( *)// |\1/// |
s|^( *)//$|\1///|
# Behind a declaration: about that one; a forward declaration has no text of its own.
s|^(struct \w+;) +//.*|\1|
s|^(\} +)// namespace.*|\1|
s|([;,{}]) +// |\1  ///< |
# typedef struct x { ... } x: one declaration for readers, not two.
s/^typedef (struct|enum) (\w+) \{(.*)\} \w+;/\1 \2 {\3};/
s/^typedef (struct|enum) (\w+) \{/\1 \2 {/
s/^\} \w+;/};/
