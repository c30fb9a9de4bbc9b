# cmake -D STYLE=a.css -D "SCRIPTS=a.js;b.js" -D OUT=x.cc -P embed_text.cmake: a page's style sheet and scripts as
# the string literals that report/fragments.h declares.
file(READ ${STYLE} style)
set(script "")
foreach(path IN LISTS SCRIPTS)
  file(READ ${path} text)
  string(APPEND script "${text}")
endforeach()
file(WRITE ${OUT} "#include \"grace/report/fragments.h\"\n\nnamespace grace::report {\n\n\
const char* const kStyle = R\"embedded(${style})embedded\";\n\n\
const char* const kScript = R\"embedded((() => {\n'use strict';\n${script}})();\n)embedded\";\n\n}  // namespace grace::report\n")
