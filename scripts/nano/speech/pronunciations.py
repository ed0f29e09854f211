"""Pronunciations in the teacher's alphabet where its own are wrong: contractions, names, foreign words."""

from __future__ import annotations

_LINES = """
i'd've ˈIdəv|you'd've jˈudəv|he'd've hˈidəv|she'd've ʃˈidəv|we'd've wˈidəv|they'd've ðˈAdəv|who'd've hˈudəv|it'd've ˈɪTədəv
should've ʃˈʊdəv|would've wˈʊdəv|must've mˈʌstəv|shouldn't've ʃˈʊdᵊntəv|wouldn't've wˈʊdᵊntəv|couldn't've kˈʊdᵊntəv
that'd ðˈæTəd|there'd ðˈɛɹəd|where'd wˈɛɹd|what're wˈʌTəɹ|these're ðˈizəɹ|those're ðˈOzəɹ|who've hˈuv|there've ðˈɛɹəv
what'd wˈʌTəd|what've wˈʌTəv|might've mˈITəv|could've kˈʊdəv|that've ðˈæTəv
siobhan ʃəvˈɔn|niamh nˈiv|joaquin wɑkˈin|nguyen wˈɪn|xi ʃˈi|goethe ɡˈɜɹTə|yosemite jOsˈɛmᵊTi|hermione həɹmˈIəni
aoife ˈifə|saoirse sˈɜɹʃə|wojciech vˈYʧɛk|zoe zˈOi|chloe klˈOi|sean ʃˈɔn|shaun ʃˈɔn|geoffrey ʤˈɛfɹi|phoebe fˈibi
acai ˌɑsɑˈi|gnocchi nˈOki|caoimhe kwˈivə|eoin ˈOɪn|ciaran kˈɪɹən|sinead ʃɪnˈAd|grainne ɡɹˈɑnjə|padraig pˈɔdɹɪɡ
mairead məɹˈAd|oisin ʌʃˈin|cillian kˈɪliən|rhiannon ɹiˈænən|angharad æŋhˈɛɹəd|ioan jˈOən|sian ʃˈɑn|dafydd dˈævɪð
jose hOsˈA|jesus ʤˈizəs|jorge hˈɔɹhA|javier hɑviˈɛɹ|julio hˈuliO|guillermo ɡijˈɛɹmO|jaime hˈImA|joaquim ʒwɑkˈim
beatriz bAətɹˈis|ximena himˈAnə|itzel ɪtsˈɛl|xochitl sˈOʧil|jimenez himˈɛnɛs|juarez hwˈɑɹɛs|vallejo vəjˈAhO|trujillo tɹuhˈijO
zhao ʤˈW|zhou ʤˈO|zhang ʤˈɑŋ|zheng ʤˈʌŋ|zhu ʤˈu|qian ʧjˈɛn|qiu ʧjˈu|qing ʧˈɪŋ|xiao ʃjˈW|xu ʃˈu|xiang ʃjˈɑŋ|cai tsˈI|cao tsˈW
huang hwˈɑŋ|wang wˈɑŋ|jiang ʤjˈɑŋ|liu ljˈu|yuan juˈɑn|tran tɹˈɑn|pham fˈɑm|phan fˈɑn|vu vˈu|ngo nˈO|duong ʤˈuɑŋ
satoshi sɑtˈOʃi|haruki hɑɹˈuki|yuki jˈuki|ayumi ɑjˈumi|sakura sˈɑkuɹə|kenji kˈɛnʤi|keiko kˈAkO|ryu ɹiˈu|ryo ɹiˈO|kyoko kiˈOkO
agnieszka ˌɑɡniˈɛʃkə|krzysztof kʃˈɪʃtɔf|lukasz lˈukɑʃ|malgorzata ˌmɑlɡɔʒˈɑtə|katarzyna ˌkɑtəʒˈɪnə|andrzej ˈɑnʤA|jerzy jˈɛʒi
szymon ʃˈɪmɔn|lech lˈɛk|walesa vɑwˈɛnsə|gdansk ɡdˈɑnsk|lodz wˈuʤ|krakow kɹˈɑkWf|wroclaw vɹˈɔtswɑf|poznan pˈOznɑn
soren sˈɔɹən|kierkegaard kˈɪɹkəɡˌɑɹd|bjorn bjˈɔɹn|jorgen jˈɜɹɡən|bjork bjˈɔɹk|sigurd sˈɪɡəɹd|joakim jˈOəkɪm|johan jˈOhɑn
jurgen jˈɜɹɡən|gunther ɡˈuntəɹ|heinrich hˈInɹɪk|friedrich fɹˈidɹɪk|ludwig lˈudvɪɡ|wolfgang wˈʊlfɡæŋ|johannes johˈɑnəs
schroeder ʃɹˈOdəɹ|schneider ʃnˈIdəɹ|koch kˈOk|bach bˈɑk|dvorak dvˈɔɹʒɑk|janacek jˈɑnəʧɛk|smetana smˈɛtənə
chopin ʃOpˈæn|debussy dɛbjusˈi|ravel ɹəvˈɛl|saint-saens sˌænsˈɑns|berlioz bˈɛɹliOz|bizet bizˈA|camus kæmˈu|sartre sˈɑɹtɹə
proust pɹˈust|rousseau ɹusˈO|voltaire vOltˈɛɹ|moliere mOljˈɛɹ|renoir ɹənwˈɑɹ|monet mOnˈA|manet mænˈA|degas dAɡˈɑ|gauguin ɡOɡˈæn
jacques ʒˈɑk|jean-paul ʒˌɑnpˈɔl|guillaume ɡijˈOm|thierry tjɛɹˈi|benoit bənwˈɑ|francois fɹɑnswˈɑ|etienne ˌAtiˈɛn|genevieve ʒˈɛnəvjˌɛv
renee ɹənˈA|desiree dˌɛzəɹˈA|aimee ˈAmi|chantal ʃɑntˈɑl|anais ˌɑnəˈis|margaux mɑɹɡˈO|beauchamp bˈiʧəm|beaulieu bOljˈu
giuseppe ʤuzˈɛpA|giovanni ʤOvˈɑni|giorgio ʤˈɔɹʤO|luigi luˈiʤi|ciao ʧˈW|michelangelo mˌIkəlˈænʤəlO|caravaggio kˌɛɹəvˈɑʤO
medici mˈɛdəʧi|versace vəɹsˈɑʧi|gucci ɡˈuʧi|lamborghini lˌæmbəɹɡˈini|bruschetta bɹuskˈɛTə|prosciutto pɹəʃˈuTO|focaccia fOkˈɑʧə
espresso ɛspɹˈɛsO|macchiato mˌɑkiˈɑTO|tagliatelle tˌɑljətˈɛli|pho fˈʌ|banh bˈɑn|jalapeno hˌɑləpˈAnjO|tortilla tɔɹtˈiə
guacamole ɡwˌɑkəmˈOli|paella pɑˈAə|chipotle ʧəpˈOtlA|quesadilla kˌAsədˈiə|habanero hˌɑbənˈɛɹO|tequila təkˈilə
croissant kɹəsˈɑnt|baguette bæɡˈɛt|crepe kɹˈAp|souffle suflˈA|ratatouille ɹˌæTətˈui|bouillon bˈʊljɑn|hors ˈɔɹ
leicester lˈɛstəɹ|gloucester ɡlˈɔstəɹ|worcester wˈʊstəɹ|warwick wˈɔɹɪk|norwich nˈɔɹɪʧ|berkshire bˈɜɹkʃəɹ
thames tˈɛmz|salisbury sˈɔlzbɛɹi|southwark sˈʌðək|marylebone mˈɑɹlɪbən|cholmondeley ʧˈʌmli|featherstonehaugh fˈænʃɔ
albuquerque ˈælbəkˌɜɹki|tucson tˈusɑn|boise bˈYsi|spokane spOkˈæn|schenectady skənˈɛktədi|poughkeepsie pəkˈɪpsi
mackinac mˈækənɔ|oahu Oˈɑhu|kauai kəwˈI|la-jolla ləhˈYə|san-jose sˌænhOzˈA|natchez nˈæʧɪz|butte bjˈut
hyderabad hˈIdəɹəbæd|bengaluru bˈɛŋɡəlˌuɹu|thiruvananthapuram θˌɪɹuvənˌʌntəpˈuɹəm|varanasi vəɹˈɑnəsi|pune pˈunə|rajesh ɹˈɑʤɛʃ
venkatesan vˌɛŋkətˈAsən|subramanian sˌubɹəmˈɑniən|lakshmi lˈʌkʃmi|siddharth sˈɪdɑɹθ|priyanka pɹijˈæŋkə|aishwarya Iʃwˈɑɹiə
okonkwo OkˈɔŋkwO|chukwu ʧˈukwu|chimamanda ʧˌimɑmˈɑndə|adichie ədˈiʧA|ngozi əŋɡˈOzi|oluwaseun ˌOluwɑʃˈAun|kwame kwˈɑmA
reykjavik ɹˈAkjəvɪk|qatar kˈʌTɑɹ|kyiv kˈiv|sao sˈW|paulo pˈWlO|beijing bAʤˈɪŋ|guangzhou ɡwˈɑŋʤO|chongqing ʧˈɔŋʧɪŋ
xian ʃiˈɑn|nanjing nˌɑnʤˈɪŋ|chengdu ʧˈʌŋdu|shenzhen ʃˈɛnʤɛn|phuket pukˈɛt|siem siˈɛm|reap ɹˈip|laos lˈWs|hanoi hɑnˈY
lille lˈil|cannes kˈæn|reims ɹˈimz|rouen ɹuˈɑn|calais kælˈA|bordeaux bɔɹdˈO|lyon liˈOn|grenoble ɡɹənˈObᵊl
schadenfreude ʃˈɑdənfɹˌYdə|zeitgeist zˈItɡIst|doppelganger dˈɑpəlɡˌæŋəɹ|angst ˈɑŋst|kindergarten kˈɪndəɹɡˌɑɹTən
faux fˈO|bourgeois bʊɹʒwˈɑ|rendezvous ɹˈɑndAvu|entrepreneur ˌɑntɹəpɹənˈɜɹ|connoisseur kˌɑnəsˈɜɹ|silhouette sˌɪluˈɛt
epitome əpˈɪTəmi|hyperbole hIpˈɜɹbəli|apostrophe əpˈɑstɹəfi|catastrophe kətˈæstɹəfi|cafe kæfˈA|naive nIˈiv|cliche kliʃˈA
fiance fˌiɑnsˈA|fiancee fˌiɑnsˈA|protege pɹˈOTəʒA|facade fəsˈɑd|niche nˈɪʧ|segue sˈɛɡwA|meme mˈim|gif ɡˈɪf
linux lˈɪnəks|ubuntu ubˈuntu|debian dˈɛbiən|postgres pˈOstɡɹɛs|sqlite ˌɛskjˌuˈɛlIt|mysql mˌIˌɛskjˌuˈɛl|nginx ˈɛnʤənˌɛks
ascii ˈæski|unicode jˈunəkOd|boolean bˈuliən|tuple tˈupᵊl|cache kˈæʃ|daemon dˈimən|regex ɹˈɛʤɛks|sudo sˈudu|github ɡˈɪthʌb
enum ˈinəm|async ˈAsɪŋk|mutex mjˈutɛks|login lˈɔɡɪn|kubernetes kˌubəɹnˈɛTiz|azure ˈæʒəɹ|json ʤˈAsɑn|wifi wˈIfI
"""
_ENTRIES = [
    entry.rpartition(" ") for line in _LINES.strip().splitlines() for entry in line.split("|")
]
_SAID: dict[str, str] = {word: phonemes for word, _, phonemes in _ENTRIES}


def said_otherwise(word: str) -> str | None:
    """Phonemes of a word that the teacher would say wrongly, else None."""
    return _SAID.get(word.lower())


def words_said_otherwise() -> list[str]:
    return list(_SAID)
