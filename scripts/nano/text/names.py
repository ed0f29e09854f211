"""Names of people, places and days: words of the training text and of the small talk."""

from __future__ import annotations

FIRST_NAMES = """
James Mary Robert Patricia John Jennifer Michael Linda David Elizabeth William Barbara Richard Susan Joseph Jessica
Thomas Sarah Charles Karen Christopher Lisa Daniel Nancy Matthew Betty Anthony Sandra Mark Margaret Donald Ashley
Steven Kimberly Paul Emily Andrew Donna Joshua Michelle Kenneth Carol Kevin Amanda Brian Melissa George Deborah
Timothy Stephanie Ronald Rebecca Jason Laura Edward Sharon Jeffrey Cynthia Ryan Kathleen Jacob Amy Gary Angela
Nicholas Shirley Eric Anna Jonathan Brenda Stephen Pamela Larry Emma Justin Nicole Scott Helen Brandon Samantha
Benjamin Katherine Samuel Christine Gregory Debra Alexander Rachel Patrick Carolyn Frank Janet Raymond Maria Jack
Olivia Dennis Heather Jerry Diane Tyler Julie Aaron Joyce Jose Victoria Adam Ruth Nathan Virginia Henry Lauren
Zachary Kelly Douglas Christina Peter Joan Kyle Evelyn Noah Judith Ethan Andrea Jeremy Hannah Walter Megan Christian
Cheryl Keith Jacqueline Roger Martha Terry Madison Austin Teresa Sean Gloria Gerald Sara Carl Janice Harold Ann
Dylan Kathryn Arthur Abigail Lawrence Sophia Jordan Frances Jesse Jean Bryan Alice Billy Judy Bruce Isabella Gabriel
Julia Joe Grace Logan Amber Alan Denise Juan Danielle Albert Marilyn Willie Beverly Elijah Charlotte Wayne Natalie
Randy Theresa Vincent Diana Mason Brittany Roy Doris Ralph Kayla Bobby Alexis Russell Lori Bradley Marie Philip
Oliver Lucas Liam Mia Amelia Harper Ella Chloe Lily Nora Zoe Clara Leo Max Felix Oscar Hugo Theo Ivan Igor Olga Yuki
Kenji Mei Chen Priya Arjun Fatima Omar Ahmed Layla Carlos Lucia Diego Elena Pablo Ines Pierre Claire Marcel Sophie
Hans Greta Klaus Ingrid Lars Astrid Sven Freya Marco Giulia Luca Chiara Paolo Bianca Nikolai Anya Pedro Camila Mateo
Valentina Aisha Hassan Kofi Amara Zara
""".split()

SURNAMES = """
Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Hernandez Lopez Gonzalez Wilson Anderson
Thomas Taylor Moore Jackson Martin Lee Perez Thompson White Harris Sanchez Clark Ramirez Lewis Robinson Walker Young
Allen King Wright Scott Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter
Roberts Gomez Phillips Evans Turner Diaz Parker Cruz Edwards Collins Reyes Stewart Morris Morales Murphy Cook Rogers
Gutierrez Ortiz Morgan Cooper Peterson Bailey Reed Kelly Howard Ramos Kim Cox Ward Richardson Watson Brooks Chavez
Wood James Bennett Gray Mendoza Ruiz Hughes Price Alvarez Castillo Sanders Patel Myers Long Ross Foster Jimenez
Powell Jenkins Perry Russell Sullivan Bell Coleman Butler Henderson Barnes Fisher Vasquez Simmons Graham Murray Ford
Hamilton Schmidt Fischer Weber Wagner Becker Hoffmann Rossi Ferrari Bianchi Dubois Moreau Laurent Nakamura Tanaka
Suzuki Yamamoto Kowalski Novak Ivanov Petrov Larsen Hansen Olsen Johansson Nilsson O'Brien O'Connor McDonald
McCarthy Fitzgerald Singh Sharma Khan Ali Wang Zhang Liu Chen Park Choi Cohen Goldberg Silva Santos Costa Ferreira
Okafor Mensah Abebe Haddad Yilmaz Papadopoulos
""".split()

PLACES = """
London Paris Berlin Madrid Rome Vienna Prague Warsaw Budapest Athens Lisbon Dublin Oslo Stockholm Helsinki
Copenhagen Amsterdam Brussels Zurich Geneva Munich Hamburg Cologne Milan Naples Venice Florence Barcelona Seville
Valencia Porto Moscow Kyiv Istanbul Ankara Cairo Lagos Nairobi Johannesburg Casablanca Tokyo Osaka Kyoto Seoul
Beijing Shanghai Singapore Bangkok Hanoi Jakarta Manila Delhi Mumbai Chennai Sydney Melbourne Auckland Toronto
Montreal Vancouver Ottawa Chicago Boston Denver Seattle Portland Houston Dallas Austin Atlanta Miami Orlando Phoenix
Detroit Cleveland Pittsburgh Philadelphia Baltimore Washington Nashville Memphis Minneapolis Milwaukee Sacramento
Oakland Mexico Havana Lima Bogota Santiago Quito Caracas Montevideo Texas California Florida Ohio Oregon Virginia
Georgia Kansas Nevada Arizona Utah Colorado Michigan Wisconsin Minnesota Iowa Missouri Tennessee Kentucky Alabama
Louisiana Oklahoma Montana Wyoming Idaho Alaska Hawaii Maine Vermont Connecticut Maryland Delaware Pennsylvania
Indiana Illinois Nebraska England Scotland Wales Ireland France Germany Spain Italy Portugal Austria Switzerland
Belgium Holland Denmark Norway Sweden Finland Iceland Poland Hungary Romania Bulgaria Greece Turkey Russia Ukraine
Egypt Morocco Kenya Nigeria Ghana India Pakistan China Japan Korea Vietnam Thailand Indonesia Malaysia Australia
Canada Brazil Argentina Chile Peru Colombia Cuba Jamaica Israel Jordan Lebanon Iran Iraq Nepal Manchester Liverpool
Edinburgh Glasgow Oxford Cambridge Bristol Brighton York Leeds Cardiff Belfast Springfield Riverside Greenville
Fairview Salem Madison Georgetown Franklin Clinton
""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
