# Converts the plain comments of the headers to Doxygen comments. The first block of a file documents the file.
1s|^//|/// \\file\n///|
# Section headings do not belong to the declaration that follows.
/^ *\/\/ ----/d
# Labels start a paragraph.
s~^( *)///? ((Agreement|Alignment|Blocking|Capture|Compatibility|Counts|Errors|Exceptions|Groups|Inputs|Lifetime|Life cycle|Limits|Membership|Ordering|Outputs?|Platforms|Preconditions|Results|Returns|Rounding|Selection|Thread safety):)~\1///\n\1/// **\2**~
s|^( *)// |\1/// |
s|^( *)//$|\1///|
# A comment at the end of a line documents that line. Forward declarations are not documented.
s|^(struct \w+;) +//.*|\1|
s|^(\} +)// namespace.*|\1|
s|([;,{}]) +// |\1  ///< |
# typedef struct x { ... } x: one declaration instead of two.
s/^typedef (struct|enum) (\w+) \{(.*)\} \w+;/\1 \2 {\3};/
s/^typedef (struct|enum) (\w+) \{/\1 \2 {/
s/^\} \w+;/};/
