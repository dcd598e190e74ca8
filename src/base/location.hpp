// Location of an error in the source code, as "file:line". make_error strips the folders of the build machine.
#pragma once

#define ISTHMUS_STRING_(x) #x
#define ISTHMUS_STRING(x) ISTHMUS_STRING_(x)
#define ISTHMUS_HERE __FILE__ ":" ISTHMUS_STRING(__LINE__)
