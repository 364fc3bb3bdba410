// The header is C++, too.
#include "umemcg.h"

int main() {
    umemcg_engine engine = 0;
    if (umemcg_engine_new(nullptr, &engine) != UMEMCG_OK)
        return 1;
    return umemcg_engine_free(engine) == UMEMCG_OK ? 0 : 1;
}
